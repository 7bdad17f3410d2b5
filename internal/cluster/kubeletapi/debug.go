package kubeletapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/version"
)

// Debug is what the pages about huskd itself show and change.
type Debug struct {
	// Configuration is shown at /configz, as a KubeletConfiguration.
	Configuration map[string]any
	// Flags are shown at /flagz, by name.
	Flags map[string]string
	// Level is the level of huskd's log, which PUT /debug/flags/v changes.
	Level *slog.LevelVar
	// LogHealth returns an error if huskd's log is blocked.
	LogHealth func() error
}

// configz shows the configuration in the kubelet's terms.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.Debug.Configuration})
}

// warning is the second line of the pages that are for people.
const warning = "Warning: this page is for people; its format may change at any time."

func (s *Server) flagz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "\nhuskd flagz\n%s\n\n", warning)
	names := make([]string, 0, len(s.Debug.Flags))
	for name := range s.Debug.Flags {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "%s=%s\n", name, s.Debug.Flags[name])
	}
}

func (s *Server) statusz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "\nhuskd statusz\n%s\n\n", warning)
	var paths []string
	for _, r := range s.routes() {
		for p := range strings.FieldsSeq(r.paths) {
			if !strings.Contains(p, "{") && p != "/" {
				paths = append(paths, p)
			}
		}
	}
	fmt.Fprintf(w, "Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\n\nPaths: %s\n", s.started.UTC().Format(time.UnixDate),
		time.Since(s.started).Round(time.Second), runtime.Version(), version.Version, strings.Join(paths, " "))
}

// profile serves the profiles of package pprof.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	switch r.PathValue("profile") {
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "cmdline":
		pprof.Cmdline(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}

// debugVerbosity is the verbosity from which a kubelet logs what is useful only for debugging.
const debugVerbosity = 4

// setVerbosity sets the level of huskd's log from a verbosity of the kubelet's.
func (s *Server) setVerbosity(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	text := string(bytes.TrimSpace(body))
	v, parseErr := strconv.ParseUint(text, 10, 8)
	if err := errors.Join(err, parseErr); err != nil {
		http.Error(w, fmt.Sprintf("the verbosity %.16q is not a number from 0 to 255", text), http.StatusBadRequest)
		return
	}
	level := slog.LevelInfo
	if v >= debugVerbosity {
		level = slog.LevelDebug
	}
	s.Debug.Level.Set(level)
	s.Log.Info("the log level was changed", "level", level.String())
	fmt.Fprintf(w, "successfully set verbosity to %s\n", text)
}

// serveFile serves the host's log files.
func (s *Server) serveFile(w http.ResponseWriter, r *http.Request) {
	http.StripPrefix("/logs/", http.FileServer(logFiles(s.HostLogs))).ServeHTTP(w, r)
}

// logFiles is a directory of log files. It serves directories and regular files, and follows no
// link that leads out of it: a pod that may write there must not choose what huskd reads.
type logFiles string

// Open opens a file of the directory.
func (dir logFiles) Open(name string) (http.File, error) {
	root, err := os.OpenRoot(string(dir))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		name = "."
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO would wait for its writer
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return f, nil
}

func writeJSON(w http.ResponseWriter, of any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(of) // the client is gone if this fails
}
