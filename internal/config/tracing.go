package config

import (
	"errors"
	"fmt"
	"net/url"
)

// Tracing says where spans of OpenTelemetry go. It is the file's table [tracing].
type Tracing struct {
	Endpoint string  `key:"endpoint" help:"URL of a collector of OpenTelemetry that takes OTLP over gRPC, such as http://127.0.0.1:4317; empty for no tracing. Headers and certificates are taken from OTEL_EXPORTER_OTLP_… in huskd's environment"`
	Sampling float64 `key:"sampling" help:"share of the calls that are traced, 0 to 1, of those whose caller says nothing of it; kubelet does if it traces"`
}

const tracingKey = "tracing"

const tracingReference = `
## Tracing

The table ` + "`[tracing]`" + ` of the file has huskd send spans of each call and of its stages to a collector.

`

// tracing reads the table.
func tracing(v any, to *Tracing) error {
	table, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: must be a table, [%s]", tracingKey, tracingKey)
	}
	var errs []error
	for _, err := range fill(options(to), table) {
		errs = append(errs, fmt.Errorf("%s.%w", tracingKey, err))
	}
	return errors.Join(errs...)
}

func (t Tracing) check() error {
	switch u, err := url.Parse(t.Endpoint); {
	case t.Endpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""):
		return errors.New("endpoint: it is not of the form http://127.0.0.1:4317")
	case !(t.Sampling >= 0 && t.Sampling <= 1):
		return fmt.Errorf("sampling: %v is not between 0 and 1", t.Sampling)
	}
	return nil
}
