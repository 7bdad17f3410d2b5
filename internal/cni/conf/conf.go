// Package conf reads the CNI networks that a directory configures, in order, and why
// other files are skipped. A Watch follows the directory. It keeps the last good
// networks while the directory can't be read, or has nothing usable for a moment.
package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// extensions are those of configuration files. Other files are ignored: CNI agents
// rename a configuration to disable it.
var extensions = []string{".conf", ".conflist", ".json"}

// maxFile is the maximum size of a configuration file in bytes.
const maxFile = 1 << 20

// Network is a usable network.
type Network struct {
	File string // its base name
	List *libcni.NetworkConfigList
}

// Skipped is a file that configures no network.
type Skipped struct {
	File string // its base name
	Why  string
}

// Found is what a directory configures, in the order of its file names.
type Found struct {
	Networks []Network
	Skipped  []Skipped
}

// Network returns the network with this name.
func (f Found) Network(name string) (Network, bool) {
	i := slices.IndexFunc(f.Networks, func(n Network) bool { return n.List.Name == name })
	if i < 0 {
		return Network{}, false
	}
	return f.Networks[i], true
}

// Load reads the directory dir. A missing directory configures nothing. usable returns
// an error for a network that can't work now, for example because a plugin is missing.
func Load(dir string, usable func(*libcni.NetworkConfigList) error) (Found, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return Found{}, nil
	}
	if err != nil {
		return Found{}, err
	}
	var found Found
	for _, e := range entries {
		if !slices.Contains(extensions, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			continue
		}
		var list *libcni.NetworkConfigList
		switch {
		case err != nil:
			err = errors.Unwrap(err) // Skipped has the name of the file
		case !info.Mode().IsRegular():
			err = errors.New("is not a regular file")
		default:
			list, err = Read(path)
		}
		if err == nil && ofNode(list) {
			continue
		}
		if err == nil {
			err = found.accept(list, usable)
		}
		if err != nil {
			found.Skipped = append(found.Skipped, Skipped{e.Name(), err.Error()})
			continue
		}
		found.Networks = append(found.Networks, Network{e.Name(), list})
	}
	return found, nil
}

// ofNode reports whether a network is this node's own, which pods of huskd get anyway. huskd writes
// such a file for other runtimes if it is only their network.
func ofNode(list *libcni.NetworkConfigList) bool {
	var form struct {
		Network string `json:"network"`
	}
	p := list.Plugins[0]
	return p.Network.Type == "husk-cni" && json.Unmarshal(p.Bytes, &form) == nil && form.Network == "node"
}

// accept returns an error if list can't be added to the networks.
func (f Found) accept(list *libcni.NetworkConfigList, usable func(*libcni.NetworkConfigList) error) error {
	if other, ok := f.Network(list.Name); ok {
		return fmt.Errorf("network %s is already configured by %s", list.Name, other.File)
	}
	return usable(list)
}

// Read reads one file: a list of plugins, or a single plugin as before version 1.0.0.
// It tells them apart by content, not by the file's extension.
func Read(path string) (*libcni.NetworkConfigList, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var form struct {
		Type    json.RawMessage `json:"type"`
		Plugins json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &form); err != nil {
		return nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	single := form.Plugins == nil && form.Type != nil
	var list *libcni.NetworkConfigList
	if single {
		list, err = upgrade(data)
	} else {
		list, err = libcni.NetworkConfFromBytes(data)
	}
	if err != nil {
		return nil, err
	}
	if err := check(list); err != nil {
		return nil, err
	}
	if !single && !list.LoadOnlyInlinedPlugins {
		more, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(path), list.Name)
		if err != nil {
			return nil, fmt.Errorf("plugins in %s: %w", list.Name, err)
		}
		list.Plugins = append(list.Plugins, more...)
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("names no plugin")
	}
	return list, checkPlugins(list)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	return data, nil
}

// upgrade turns a single plugin's configuration into a list.
func upgrade(data []byte) (*libcni.NetworkConfigList, error) {
	plugin, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	return &libcni.NetworkConfigList{
		Name: plugin.Network.Name, CNIVersion: plugin.Network.CNIVersion, LoadOnlyInlinedPlugins: true,
		Plugins: []*libcni.PluginConfig{plugin}, Bytes: data,
	}, nil
}

func check(list *libcni.NetworkConfigList) error {
	if list.Name == "" {
		return errors.New("has no name")
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return fmt.Errorf("name %q: use letters and digits, and after the first one also _ . -", list.Name)
	}
	if list.CNIVersion == "" {
		list.CNIVersion = "0.1.0" // as the specification says
	}
	if known := version.All.SupportedVersions(); !slices.Contains(known, list.CNIVersion) {
		return fmt.Errorf("cniVersion %q is none of %s", list.CNIVersion, strings.Join(known, ", "))
	}
	return nil
}

// Versions returns the known CNI versions in list's cniVersions and cniVersion, the
// highest first.
func Versions(list *libcni.NetworkConfigList) []string {
	var form struct {
		Versions []string `json:"cniVersions"`
	}
	_ = json.Unmarshal(list.Bytes, &form) // was parsed by Read
	var out []string
	for _, v := range slices.Backward(version.All.SupportedVersions()) {
		if v == list.CNIVersion || slices.Contains(form.Versions, v) {
			out = append(out, v)
		}
	}
	return out
}

func checkPlugins(list *libcni.NetworkConfigList) error {
	if len(list.Plugins) == 1 && list.Plugins[0].Network.Type == "loopback" {
		return errors.New("configures the loopback, which every pod has anyway")
	}
	for i, p := range list.Plugins {
		if t := p.Network.Type; t == "." || t == ".." || strings.ContainsAny(t, "/\x00") {
			return fmt.Errorf("plugins[%d]: type %q is not the name of a program", i, t)
		}
	}
	return nil
}

// Marshal encodes list with all its plugins, including those from other files, so that
// Unmarshal needs no file.
func Marshal(list *libcni.NetworkConfigList) ([]byte, error) {
	whole := stored{
		Name: list.Name, CNIVersion: list.CNIVersion, DisableCheck: list.DisableCheck, DisableGC: list.DisableGC,
		OnlyInlined: true,
	}
	for _, p := range list.Plugins {
		whole.Plugins = append(whole.Plugins, p.Bytes)
	}
	return json.Marshal(whole)
}

type stored struct {
	Name         string            `json:"name"`
	CNIVersion   string            `json:"cniVersion"`
	DisableCheck bool              `json:"disableCheck,omitempty"`
	DisableGC    bool              `json:"disableGC,omitempty"`
	OnlyInlined  bool              `json:"loadOnlyInlinedPlugins"`
	Plugins      []json.RawMessage `json:"plugins"`
}

// Unmarshal decodes what Marshal returned.
func Unmarshal(data []byte) (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(data)
	if err == nil {
		err = check(list)
	}
	return list, err
}
