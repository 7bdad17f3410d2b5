package oci

import (
	"errors"
	"strings"
	"testing"
)

// TestNewStartError has messages of runc 1.1.5, crun 1.8.1 and gVisor.
func TestNewStartError(t *testing.T) {
	for message, want := range map[string]int{
		`runc create failed: unable to start container process: exec: "nosuch": executable file not found in $PATH`:       127,
		`runc create failed: unable to start container process: exec: "/nosuch": stat /nosuch: no such file or directory`: 127,
		`runc create failed: unable to start container process: exec: "/x": permission denied`:                            126,
		`runc create failed: unable to start container process: exec: "/bin": is a directory`:                             126,
		"executable file `nosuch` not found in $PATH: No such file or directory":                                          127,
		"executable file `/nosuch` not found: No such file or directory":                                                  127,
		"open executable: Permission denied":                                                                              126,
		`executing command "/nosuch" in sandbox: failed to load /nosuch: no such file or directory`:                       127,
		"error mounting \"/x\" to rootfs: stat /x: no such file or directory":                                             128,
		"permission denied": 128,
		"":                  128,
	} {
		var got *StartError
		if err := NewStartError(message); !errors.As(err, &got) || got.Code != want || got.Message == "" {
			t.Errorf("error of %q is %+v, want code %d", message, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "\n\n": "", "a": "a", "a\n": "a", "a\nb\r\nc\n": "a; b; c", strings.Repeat("x", 5000): strings.Repeat("x", 2048) + "…",
	} {
		if got := OneLine(in); got != want {
			t.Errorf("OneLine(%.20q) is %.20q, want %.20q", in, got, want)
		}
	}
}
