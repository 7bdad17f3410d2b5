package daemonless

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
)

// Keys of the meta bucket.
var baseKey = []byte("base") // the base as last created

const (
	subnetPrefix = "subnet/" // mode/prefix of every subnet configured since boot
	sysctlPrefix = "sysctl/" // the former value
)

// base returns the plan of the node's base. It includes what attachments of former configurations
// need.
func (t *tx) base(n *Network) plan.Base {
	c := plan.BaseConfig{
		Instance: n.instance, Tag: n.tag, Mode: n.cfg.Mode, Bridge: n.cfg.Bridge,
		Owner: n.owner(), Subnets: n.subnets(), Masquerade: n.cfg.Masquerade,
		Leased: map[plan.Mode][]netip.Prefix{},
	}
	cursor := t.meta.Cursor()
	for k, _ := cursor.Seek([]byte(subnetPrefix)); strings.HasPrefix(string(k), subnetPrefix); k, _ = cursor.Next() {
		mode, subnet, _ := strings.Cut(string(k[len(subnetPrefix):]), "/")
		if p, err := netip.ParsePrefix(subnet); err == nil {
			c.Leased[plan.Mode(mode)] = append(c.Leased[plan.Mode(mode)], p)
		}
	}
	return plan.ForNode(c)
}

// owner returns a longer digest of the directory than the instance's four digits, to detect
// collisions.
func (n *Network) owner() string {
	sum := sha256.Sum256([]byte(filepath.Clean(n.cfg.Dir)))
	return hex.EncodeToString(sum[:8])
}

// recordedBase returns the base as last created; ok is false if there is none.
func (t *tx) recordedBase() (b plan.Base, ok bool) {
	text := t.meta.Get(baseKey)
	return b, text != nil && json.Unmarshal(text, &b) == nil
}

// ensure creates the base, unless it is recorded as created.
func (t *tx) ensure(n *Network, dp *datapath.Datapath) error {
	for _, s := range n.subnets() {
		if err := t.meta.Put([]byte(subnetPrefix+string(n.cfg.Mode)+"/"+s.String()), []byte{1}); err != nil {
			return err
		}
	}
	base := t.base(n)
	text, err := json.Marshal(base)
	if err != nil {
		return err
	}
	if bytes.Equal(t.meta.Get(baseKey), text) {
		return nil
	}
	if err := dp.InNode(func() error { return preflight.Overlap(n.instance, n.cfg.Bridge, n.subnets()) }); err != nil {
		return err
	}
	if err := t.setSysctls(dp, base); err != nil {
		return err
	}
	crashpoint.Hit("daemonless.forwarding")
	if err := dp.Ensure(base); err != nil {
		return err
	}
	return t.meta.Put(baseKey, text)
}

// errUnrecorded means that sysctls would be changed whose former values aren't on disk yet.
var errUnrecorded = errors.New("former values of sysctls aren't recorded")

// setSysctls sets the sysctls that routing needs. Their former values must have been recorded by an
// earlier transaction, so that another call can restore them if this process is killed.
func (t *tx) setSysctls(dp *datapath.Datapath, base plan.Base) error {
	changes, err := dp.MissingSysctls(base.Sysctls)
	if err != nil {
		return err
	}
	for _, c := range changes {
		if t.meta.Get([]byte(sysctlPrefix+c.Name)) == nil {
			return errUnrecorded
		}
	}
	return dp.SetSysctls(changes)
}

// prepare runs change, which creates the base, in a transaction.
func (l *locked) prepare(dp *datapath.Datapath, change func(*tx) error) error {
	record := func(t *tx) error { return t.recordSysctls(dp, t.base(l.n)) }
	err := l.update(change)
	// Other programs may reset some, or another call may delete the records with the last
	// attachment.
	for tries := 0; errors.Is(err, errUnrecorded) && tries < 5; tries++ {
		if err := l.update(record); err != nil {
			return err
		}
		crashpoint.Hit("daemonless.recorded")
		err = l.update(change)
	}
	return err
}

// recordSysctls records the former values of the sysctls that setSysctls would change.
func (t *tx) recordSysctls(dp *datapath.Datapath, base plan.Base) error {
	changes, err := dp.MissingSysctls(base.Sysctls)
	for _, c := range changes {
		if key := []byte(sysctlPrefix + c.Name); err == nil && t.meta.Get(key) == nil {
			err = t.meta.Put(key, []byte(c.Former))
		}
	}
	return err
}

// repairBase recreates the base after another program removed some of it, and puts back what
// belongs to the attachments there.
func (t *tx) repairBase(n *Network, dp *datapath.Datapath) error {
	n.cfg.Log.Warn("network: the nftables table or the bridge was removed; recreating it", "table", n.instance.Table())
	var elements []plan.Element
	err := t.each(func(r *record) error {
		if r.Releasing == 0 {
			elements = append(elements, r.plan().Elements...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dp.RepairBase(t.base(n), elements)
}

// teardown removes the base, and restores the sysctls unless another instance of Husk needs them.
func (t *tx) teardown(dp *datapath.Datapath) error {
	if err := dp.Teardown(); err != nil {
		return err
	}
	former := map[string]string{}
	var keys [][]byte
	err := t.meta.ForEach(func(k, v []byte) error {
		if name, ok := strings.CutPrefix(string(k), sysctlPrefix); ok {
			former[name] = string(v)
		}
		if !strings.HasPrefix(string(k), "cursor/") {
			keys = append(keys, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := dp.RestoreSysctls(former); err != nil {
		return err
	}
	for _, k := range keys {
		if err := t.meta.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
