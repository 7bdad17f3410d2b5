package spec

import (
	"path"
	"strings"
)

// args works as in docker: a command replaces the image's entrypoint and cmd, args replace its cmd.
func (b *builder) args() error {
	command, args := b.Config.GetCommand(), b.Config.GetArgs()
	if len(command) == 0 {
		// An entrypoint of one empty string means none.
		if len(b.Image.Entrypoint) != 1 || b.Image.Entrypoint[0] != "" {
			command = b.Image.Entrypoint
		}
		if len(args) == 0 {
			args = b.Image.Cmd
		}
	}
	all := make([]string, 0, len(command)+len(args))
	all = append(append(all, command...), args...)
	if len(all) == 0 {
		return b.bad("command", "nothing to run: image %s has no entrypoint and no cmd, so the container must name a command", b.ImageName)
	}
	if all[0] == "" {
		return b.bad("command", "its first word is empty: name a program")
	}
	b.spec.Process.Args = all
	return nil
}

// defaultPath is the PATH of docker and containerd for images without one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// env sets the environment: Husk's variables, then the image's, then the config's. Later ones
// replace earlier ones of the same name.
func (b *builder) env() error {
	var env []string
	index := map[string]int{}
	set := func(key, value string) {
		i, ok := index[key]
		if !ok {
			i, index[key] = len(env), len(env)
			env = append(env, "")
		}
		env[i] = key + "=" + value
	}
	set("PATH", defaultPath)
	if b.Config.GetTty() {
		set("TERM", "xterm")
	}
	if name := b.hostname(); name != "" {
		set("HOSTNAME", name)
	}
	for _, e := range b.Image.Env {
		// Old builders wrote names without a value. They have no meaning.
		if key, value, ok := strings.Cut(e, "="); ok && key != "" && !strings.ContainsRune(e, 0) {
			set(key, value)
		}
	}
	for _, e := range b.Config.GetEnvs() {
		key := e.GetKey()
		if key == "" || strings.Contains(key, "=") {
			return b.bad("envs", "%q can't name a variable", key)
		}
		set(key, string(e.GetValue()))
	}
	if _, ok := index["HOME"]; !ok && b.Home != "" {
		set("HOME", b.Home)
	}
	b.spec.Process.Env = env
	return nil
}

// hostname returns the hostname in the container: the sandbox's, or the node's if it shares the
// node's network and thus UTS namespace.
func (b *builder) hostname() string {
	if name := b.Sandbox.GetHostname(); name != "" && !b.hostNetwork() {
		return name
	}
	return b.NodeName
}

func (b *builder) process() error {
	p := b.spec.Process
	p.Terminal = b.Config.GetTty()
	p.User = b.User
	p.NoNewPrivileges = b.security.GetNoNewPrivs()
	p.Rlimits = b.Limits.Rlimits
	// Some images have a relative working directory. As in docker it starts at /.
	p.Cwd = path.Join("/", b.Image.WorkingDir)
	if dir := b.Config.GetWorkingDir(); dir != "" {
		p.Cwd = path.Join("/", dir)
	}
	return nil
}

// The range of oom_score_adj, from include/uapi/linux/oom.h.
const minOOMScore, maxOOMScore = -1000, 1000

func (b *builder) oomScore() error {
	resources := b.Config.GetLinux().GetResources()
	if resources == nil {
		return nil
	}
	asked := resources.GetOomScoreAdj()
	if asked < minOOMScore || asked > maxOOMScore {
		return b.bad("linux.resources.oom_score_adj", "%d is not within %d…%d", asked, minOOMScore, maxOOMScore)
	}
	b.setOOMScore(int(asked))
	return nil
}

// setOOMScore sets the score to adj, or to the lowest possible one: runtimes fail on a lower one.
func (b *builder) setOOMScore(adj int) {
	if floor := b.Host.OOMScoreFloor; adj < floor {
		b.note("container %q: oom_score_adj is %d, not %d: the daemon has no CAP_SYS_RESOURCE to lower it", b.name, floor, adj)
		adj = floor
	}
	b.spec.Process.OOMScoreAdj = &adj
}
