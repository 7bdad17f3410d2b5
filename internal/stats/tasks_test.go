package stats

import "testing"

func TestTasks(t *testing.T) {
	t.Parallel()
	if has, most, err := Tasks(); err != nil || has < 1 || most < has {
		t.Errorf("%d of %d tasks, %v", has, most, err)
	}
	if n, err := parseTasks("0.75 0.35 0.25 1/70000 1747\n"); n != 70000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "1 2 3 4 5"} {
		if _, err := parseTasks(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
