package config

import (
	"errors"
	"fmt"
	"net/url"
)

// Tracing configures OpenTelemetry. It is the table [tracing] of the file.
type Tracing struct {
	Endpoint string  `key:"endpoint" help:"URL of an OpenTelemetry collector for OTLP over gRPC, such as http://127.0.0.1:4317; empty to disable tracing. Headers and certificates are set by OTEL_EXPORTER_OTLP_… in huskd's environment"`
	Sampling float64 `key:"sampling" help:"fraction of calls to trace, 0 to 1, if the caller doesn't decide; a kubelet with tracing does"`
}

const tracingKey = "tracing"

const tracingReference = `
## Tracing

The table ` + "`[tracing]`" + ` of the file makes huskd send spans of each call and of its stages to a collector.

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
		return errors.New("endpoint: must be of the form http://127.0.0.1:4317")
	case !(t.Sampling >= 0 && t.Sampling <= 1):
		return fmt.Errorf("sampling: %v is not between 0 and 1", t.Sampling)
	}
	return nil
}
