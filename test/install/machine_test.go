package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/debian"
	"github.com/huskd/husk/test/testimage"
)

// installed are the packages of the machine: those of a small Debian server, and what husk depends
// on, because the machine has no network.
const installed = "systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,nftables,runc,conmon,linux-image-cloud-amd64"

// guestUnit runs the test of this boot and then reboots or ends the machine.
const guestUnit = `[Unit]
After=multi-user.target dbus.service systemd-logind.service
Wants=systemd-logind.service

[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS1
Environment=HOME=/root
ExecStart=/bin/sh -c 'if [ -e /root/rebooted ]; then /root/guest -test.v -test.timeout=10m -test.run=^TestReboot$; else /root/guest -test.v -test.timeout=10m -test.run=^TestInstall$; fi; true'
ExecStart=/bin/systemctl --no-block reboot
`

// TestMachine installs, upgrades and removes the Debian package in a virtual machine with Debian
// and systemd, with pods that run meanwhile. See package guest.
func TestMachine(t *testing.T) {
	hosttest.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	base, err := debian.Cached("husk-vm", "debian-with-systemd", func(into string) error {
		_, err := debian.Output(ctx, into, "mmdebstrap", "--variant=minbase", "--include="+installed, "bookworm", filepath.Join(into, "root.tar"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mkdir", root)
	run(t, "tar", "-C", root, "-xf", filepath.Join(base, "root.tar"))
	for name, version := range map[string]string{"older": "1.0.0", "newer": "1.1.0"} {
		t.Setenv("PACKAGE_VERSION", version)
		run(t, "cp", one(t, packages(t, "amd64"), "husk_*_amd64.deb"), filepath.Join(root, "root", name+".deb"))
	}
	t.Setenv("CGO_ENABLED", "0")
	run(t, "go", "test", "-c", "-tags", "vm", "-ldflags", "-s -w", "-o", filepath.Join(root, "root/guest"), "./guest")
	image, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web, Compression: testimage.Uncompressed})
	if err != nil {
		t.Fatal(err)
	}
	var archive strings.Builder
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: image, Names: []string{"localhost/web:1"}}); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		"root/web.tar": archive.String(), "etc/systemd/system/guest.service": guestUnit, "etc/hostname": "vm\n",
		"etc/machine-id": "68757368757368757368757368757368\n",
	} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "ln", "-s", "/etc/systemd/system/guest.service", filepath.Join(root, "etc/systemd/system/multi-user.target.wants/guest.service"))
	disk := filepath.Join(dir, "disk")
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", root, disk, "3G")
	for _, test := range []string{"TestInstall", "TestReboot"} {
		began := time.Now()
		out := boot(ctx, t, root, disk)
		t.Logf("%s: the machine ran for %v\n%s", test, time.Since(began).Round(time.Second), out)
		if !strings.Contains(out, "--- PASS: "+test) {
			t.Fatalf("%s fails", test)
		}
	}
}

// boot boots the machine, waits until it reboots, and returns what the test printed.
func boot(ctx context.Context, t *testing.T, root, disk string) string {
	t.Helper()
	file := func(pattern string) string { return one(t, filepath.Join(root, "boot"), pattern) }
	console := filepath.Join(filepath.Dir(disk), "console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+console, "-serial", "stdio",
		"-drive", "file="+disk+",if=virtio,format=raw,cache=unsafe",
		"-kernel", file("vmlinuz-*"), "-initrd", file("initrd.img-*"),
		"-append", "root=/dev/vda rw console=ttyS0 random.trust_cpu=on mitigations=off no5lvl panic=-1")
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) == 0 {
		log, _ := os.ReadFile(console)
		t.Fatalf("virtual machine: %v\n%s\nits console:\n%s", fmt.Sprint(err, context.Cause(ctx)), out, log)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}
