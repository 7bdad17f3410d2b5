package spec

import (
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const passwdFile = `root:x:0:0:root:/root:/bin/sh
# a comment
malformed
nobody:x:notanumber:1::/:
web:x:33:34:www:/var/www:/sbin/nologin
short:x:40:41
1000:x:0:0:a name that is a number:/evil:/bin/sh
homeless:x:50:51::relative:/bin/sh
big:x:4294967295:0::/:
noshell:x:60:61::/home/n
web:x:99:99:second entry:/x:/bin/sh
`

const groupFile = `root:x:0:root
web:x:34:
logs:x:70:web,short
adm:x:71:short,web
bad:x:y:web
::5:web
www:x:80
web2:x:70:web
2000:x:9:
`

func TestResolveUser(t *testing.T) {
	t.Parallel()
	type security = runtimeapi.LinuxContainerSecurityContext
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for _, c := range []struct {
		image    string
		security *security
		uid, gid uint32
		groups   []uint32
		home     string
	}{
		{"", nil, 0, 0, []uint32{0}, "/root"},
		{":web", nil, 0, 34, []uint32{34, 0}, "/root"},
		{"web", nil, 33, 34, []uint32{34, 70, 71}, "/var/www"},
		{"33", nil, 33, 34, []uint32{34, 70, 71}, "/var/www"},
		{"web:logs", nil, 33, 70, []uint32{70, 71}, "/var/www"},
		{"web:1000", nil, 33, 1000, []uint32{1000, 70, 71}, "/var/www"},
		{"1000", nil, 1000, 0, []uint32{0}, "/"}, // not the user of that name
		{"1000:1000", nil, 1000, 1000, []uint32{1000}, "/"},
		{"1000:www", nil, 1000, 80, []uint32{80}, "/"},
		{"5:2000", nil, 5, 2000, []uint32{2000}, "/"}, // not the group of that name
		{"short", nil, 40, 41, []uint32{41, 70, 71}, "/"},
		{"homeless", nil, 50, 51, []uint32{51}, "/"},
		{"noshell", nil, 60, 61, []uint32{61}, "/home/n"},
		{"web", &security{RunAsUser: id(0)}, 0, 0, []uint32{0}, "/root"},
		{"web", &security{RunAsUser: id(7), RunAsGroup: id(8)}, 7, 8, []uint32{8}, "/"},
		{"7:9", &security{RunAsUser: id(7)}, 7, 9, []uint32{9}, "/"}, // kubelet repeats the image's user
		{"7:9", &security{RunAsUser: id(6)}, 6, 0, []uint32{0}, "/"},
		{"", &security{RunAsUsername: "web"}, 33, 34, []uint32{34, 70, 71}, "/var/www"},
		{"web:logs", &security{RunAsUsername: "web"}, 33, 70, []uint32{70, 71}, "/var/www"},
		{"", &security{RunAsUsername: "web", RunAsGroup: id(1)}, 33, 1, []uint32{1, 70, 71}, "/var/www"},
		{"web", &security{SupplementalGroups: []int64{500, 70}}, 33, 34, []uint32{34, 70, 71, 500}, "/var/www"},
		{"web", &security{SupplementalGroups: []int64{500, 34}, SupplementalGroupsPolicy: 1}, 33, 34, []uint32{34, 500}, "/var/www"},
		{"4294967294", nil, 4294967294, 0, []uint32{0}, "/"},
	} {
		user, home, err := ResolveUser(UserRequest{Image: "i", ImageUser: c.image, Security: c.security}, []byte(passwdFile), []byte(groupFile))
		if err != nil {
			t.Errorf("%q %v: %v", c.image, c.security, err)
			continue
		}
		if user.UID != c.uid || user.GID != c.gid || !slices.Equal(user.AdditionalGids, c.groups) || home != c.home {
			t.Errorf("%q %v: %+v at %s, want %d:%d %v at %s", c.image, c.security, user, home, c.uid, c.gid, c.groups, c.home)
		}
	}
	user, home, err := ResolveUser(UserRequest{}, nil, nil)
	if err != nil || user.UID != 0 || user.GID != 0 || home != "/" {
		t.Errorf("no files: %+v at %s, %v", user, home, err)
	}
}

func TestResolveUserFails(t *testing.T) {
	t.Parallel()
	type security = runtimeapi.LinuxContainerSecurityContext
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for words, r := range map[string]UserRequest{
		`user: "nginx" is not in /etc/passwd of image i`:    {ImageUser: "nginx"},
		`user: "nobody" is not in /etc/passwd`:              {ImageUser: "nobody"},
		`user: "4294967295" is not`:                         {ImageUser: "4294967295"},
		`user: "-1" is not`:                                 {ImageUser: "-1"},
		`group: "nogroup" is not in /etc/group of image i`:  {ImageUser: "web:nogroup"},
		`group: "a:b" is not`:                               {ImageUser: "web:a:b"},
		`user: "ghost" is not in /etc/passwd of image i`:    {Security: &security{RunAsUsername: "ghost"}},
		"run_as_username: run_as_user is set too":           {Security: &security{RunAsUsername: "web", RunAsUser: id(1)}},
		"run_as_group: needs run_as_user":                   {Security: &security{RunAsGroup: id(1)}},
		"run_as_user: -1 is not within":                     {Security: &security{RunAsUser: id(-1)}},
		"run_as_user: 4294967295 is not within":             {Security: &security{RunAsUser: id(4294967295)}},
		"run_as_group: -5 is not within":                    {Security: &security{RunAsUser: id(1), RunAsGroup: id(-5)}},
		"supplemental_groups: -1 is not within":             {Security: &security{SupplementalGroups: []int64{-1}}},
		"supplemental_groups_policy: unknown policy 5":      {Security: &security{SupplementalGroupsPolicy: 5}},
		"linux.security_context.run_as_group: needs run_as": {ImageUser: "web", Security: &security{RunAsGroup: id(0)}},
	} {
		r.Image = "i"
		_, _, err := ResolveUser(r, []byte(passwdFile), []byte(groupFile))
		fails(t, err, words)
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("web:logs", "", []byte(passwdFile), []byte(groupFile))
	f.Add("", "web", []byte("web:x:1"), []byte(":::\n"))
	f.Fuzz(func(t *testing.T, image, name string, passwd, group []byte) {
		r := UserRequest{ImageUser: image, Security: &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: name}}
		user, home, err := ResolveUser(r, passwd, group)
		if err != nil {
			return
		}
		if home == "" || home[0] != '/' {
			t.Errorf("home %q", home)
		}
		if user.UID > maxID || user.GID > maxID || !slices.Contains(user.AdditionalGids, user.GID) {
			t.Errorf("%+v", user)
		}
		if n := slices.Compact(slices.Sorted(slices.Values(user.AdditionalGids))); len(n) != len(user.AdditionalGids) {
			t.Errorf("a group twice: %v", user.AdditionalGids)
		}
	})
}
