package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// systemdAnalyze returns the output of systemd-analyze about a unit.
func systemdAnalyze(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	// It fails, too, because the programs aren't installed.
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	return string(out)
}

// TestUnitsAreHardened checks that systemd understands the packages' units, and that each option of
// "systemd-analyze security" is set in them or has a word in a comment that says why it isn't.
func TestUnitsAreHardened(t *testing.T) {
	t.Parallel()
	const dir = "../../packaging/systemd"
	for unit, most := range map[string]float64{"huskd.service": 9.9, "husk-shutdown.service": 1} {
		t.Run(unit, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(dir, unit))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), unit)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(systemdAnalyze(t, "verify", "--man=no", path)) {
				if strings.Contains(line, unit) && !strings.Contains(line, "is not executable") {
					t.Error(line)
				}
			}
			var rows []struct {
				Set      *bool
				Name     string
				Exposure string
			}
			raw := systemdAnalyze(t, "security", "--offline=true", "--json=short", path)
			if err := json.Unmarshal([]byte(raw), &rows); err != nil || len(rows) < 50 {
				t.Fatalf("%d options, %v: %s", len(rows), err, raw)
			}
			for _, row := range rows {
				name, _, _ := strings.Cut(row.Name, "=")
				if row.Set == nil || *row.Set || regexp.MustCompile(`(?m)^`+name+`=`).Match(text) {
					continue
				}
				if !regexp.MustCompile(`(?m)^#.*\b` + name + `\b`).Match(text) {
					t.Errorf("%s is neither set nor explained", row.Name)
				}
			}
			said := regexp.MustCompile(`Overall exposure level for \S+: ([\d.]+)`).FindStringSubmatch(systemdAnalyze(t, "security", "--offline=true", path))
			if said == nil {
				t.Fatal("there is no overall exposure level")
			}
			if level, err := strconv.ParseFloat(said[1], 64); err != nil || level > most {
				t.Errorf("the exposure level is %s, at most %v: %v", said[1], most, err)
			}
		})
	}
}
