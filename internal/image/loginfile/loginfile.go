// Package loginfile keeps the node's own logins at registries in a file, in the form of docker's
// config.json. Only root can read it.
package loginfile

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/huskd/husk/internal/atomicfile"
)

// Login is a user name and a password.
type Login struct{ Username, Password string }

// File is the file at a path. Its methods may be called concurrently.
type File struct {
	path string
	mu   sync.Mutex
}

// At returns the file at a path, which need not exist.
func At(path string) *File { return &File{path: path} }

// config is what the file has, by the hosts of registries.
type config struct {
	Auths map[string]auth `json:"auths"`
}

type auth struct {
	Auth []byte `json:"auth"` // USERNAME:PASSWORD; JSON has it in base64
}

// Get returns the login at a registry.
func (f *File) Get(host string) (l Login, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.read()
	if err != nil {
		return l, false, err
	}
	a, ok := c.Auths[host]
	l.Username, l.Password, _ = strings.Cut(string(a.Auth), ":")
	return l, ok, nil
}

// Hosts returns the registries that have a login.
func (f *File) Hosts() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.read()
	return slices.Sorted(maps.Keys(c.Auths)), err
}

// Set sets the login at a registry. It is on disk when Set returns.
func (f *File) Set(host string, l Login) error {
	return f.change(func(c config) { c.Auths[host] = auth{[]byte(l.Username + ":" + l.Password)} })
}

// Remove removes the login at a registry, and reports whether there was one.
func (f *File) Remove(host string) (had bool, err error) {
	err = f.change(func(c config) {
		_, had = c.Auths[host]
		delete(c.Auths, host)
	})
	return had, err
}

func (f *File) read() (config, error) {
	c := config{Auths: map[string]auth{}}
	raw, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if bad := (base64.CorruptInputError)(0); errors.As(err, &bad) {
		err = errors.New("a password isn't in base64")
	}
	if err != nil {
		return c, fmt.Errorf("logins at registries: %s: %w: remove the file, and log in again", f.path, err)
	}
	if c.Auths == nil {
		c.Auths = map[string]auth{}
	}
	return c, nil
}

// change replaces the file, so that a crash leaves the former one or the new one.
func (f *File) change(do func(config)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.read()
	if err != nil {
		return err
	}
	do(c)
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(f.path, raw, 0o600); err != nil {
		return fmt.Errorf("logins at registries: %w", err)
	}
	return nil
}
