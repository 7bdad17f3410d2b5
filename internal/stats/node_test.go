package stats

import "testing"

func TestNode(t *testing.T) {
	t.Parallel()
	if c := parseStat("cpu  100 20 30 4000 5 6 7 8 0 0\ncpu0 1 2\n"); c.User != 120*tick || c.System != 43*tick || c.Used != 163*tick {
		t.Errorf("%+v", c)
	}
	for _, text := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8"} {
		if c := parseStat(text); c.Used != 0 {
			t.Errorf("%q: %+v", text, c)
		}
	}
	m := parseMeminfo("MemTotal:  1000 kB\nMemFree:  300 kB\nInactive(file): 200 kB\nAnonPages: 100 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\nHugePages_Total: 0\n\n")
	if m.Limit != 1000<<10 || m.Used != 700<<10 || m.WorkingSet != 500<<10 || m.RSS != 100<<10 || m.Swap != 30<<10 {
		t.Errorf("%+v", m)
	}
	before, err := Node()
	if err != nil || before.CPU.Used == 0 || before.Memory.WorkingSet == 0 {
		t.Errorf("%+v %v", before, err)
	}
}
