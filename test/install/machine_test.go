package install

import (
	"bufio"
	"context"
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
ExecStart=/bin/sh -c '/root/guest -test.v -test.timeout=20m -test.run=^$(cat /root/next 2>/dev/null || echo TestInstall)$; true'
ExecStart=/bin/systemctl --no-block reboot
`

// TestMachine installs, upgrades and removes the Debian package in a virtual machine with Debian
// and systemd, with pods that run meanwhile. See package guest.
func TestMachine(t *testing.T) {
	hosttest.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
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
		run(t, "cp", one(t, release(t, version), "husk_*_amd64.deb"), filepath.Join(root, "root", name+".deb"))
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
	for _, test := range []string{"TestInstall", "TestReboot", "TestPurge"} {
		began := time.Now()
		out := boot(ctx, t, test, root, disk)
		t.Logf("%s: the machine ran for %v", test, time.Since(began).Round(time.Second))
		if !strings.Contains(out, "--- PASS: "+test) {
			t.Fatalf("%s fails", test)
		}
	}
}

// boot boots the machine, waits until it reboots, and returns what the test in it printed, which is
// logged line by line. The console of the kernel and of systemd is the artifact TEST.console.
func boot(ctx context.Context, t *testing.T, test, root, disk string) string {
	t.Helper()
	file := func(pattern string) string { return one(t, filepath.Join(root, "boot"), pattern) }
	console := filepath.Join(t.ArtifactDir(), test+".console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "file:"+console, "-serial", "stdio",
		"-drive", "file="+disk+",if=virtio,format=raw,cache=unsafe",
		"-kernel", file("vmlinuz-*"), "-initrd", file("initrd.img-*"),
		"-append", "root=/dev/vda rw console=ttyS0 random.trust_cpu=on mitigations=off no5lvl panic=-1")
	var out, errs strings.Builder
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("virtual machine: %v", err)
	}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		t.Log(lines.Text()) // without the \r of the port's driver
		out.WriteString(lines.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil || out.Len() == 0 {
		log, _ := os.ReadFile(console)
		t.Fatalf("virtual machine: %v, %v\n%s\nits console:\n%s", err, context.Cause(ctx), errs.String(), log)
	}
	return out.String()
}
