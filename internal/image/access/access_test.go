package access

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	secret  = Secret{UID: "u1", Namespace: "team", Name: "login"}
	byLogin = Grant{Repository: "reg.test/team/app", Kind: Login, Hash: Hash("alice", "secret", "")}
	bySeen  = Grant{Repository: "reg.test/team/app", Kind: Login, Hash: Hash("alice", "secret", ""), Secret: &secret}
	byNode  = Grant{Repository: "reg.test/pub/app", Kind: Node}
	loaded  = Grant{Repository: "localhost/app", Kind: Preloaded}
)

func TestAllows(t *testing.T) {
	t.Parallel()
	alice, eve := Credential{Hash: Hash("alice", "secret", "")}, Credential{Hash: Hash("alice", "wrong", "")}
	renewed := Credential{Hash: Hash("alice", "newer", ""), Secret: secret}
	namesake := Credential{Hash: Hash("alice", "newer", ""), Secret: Secret{UID: "u2", Namespace: "team", Name: "login"}}
	nameless := Credential{Hash: Hash("alice", "newer", ""), Secret: Secret{Namespace: "team", Name: "login"}}
	for _, c := range []struct {
		what, repository string
		grants           Grants
		logins           []Credential
		want             string // the modes that allow it: preloaded, allowlist, always
	}{
		{"pulled, no login", "reg.test/team/app", Grants{byLogin}, nil, ""},
		{"pulled, another login", "reg.test/team/app", Grants{byLogin}, []Credential{eve}, ""},
		{"pulled, its login", "reg.test/team/app", Grants{byLogin}, []Credential{eve, alice}, "preloaded allowlist always"},
		{"its Secret with a newer login", "reg.test/team/app", Grants{bySeen}, []Credential{renewed}, "preloaded allowlist always"},
		{"a Secret of that name", "reg.test/team/app", Grants{bySeen}, []Credential{namesake}, ""},
		{"a Secret without a UID", "reg.test/team/app", Grants{{Repository: "reg.test/team/app", Kind: Login, Hash: "x", Secret: &Secret{Namespace: "team", Name: "login"}}}, []Credential{nameless}, ""},
		{"another name of the image", "reg.test/other/app", Grants{byLogin}, []Credential{alice}, ""},
		{"the ID, no login", "", Grants{byLogin}, nil, ""},
		{"the ID, its login", "", Grants{byLogin}, []Credential{alice}, "preloaded allowlist always"},
		{"pulled without a login", "reg.test/pub/app", Grants{byNode}, nil, "preloaded allowlist always"},
		{"pulled with and without, its private name", "reg.test/team/app", Grants{byNode, byLogin}, nil, ""},
		{"pulled with and without, the ID", "", Grants{byNode, byLogin}, nil, "preloaded allowlist always"},
		{"loaded", "localhost/app", Grants{loaded}, nil, "preloaded"},
		{"loaded, and allowed by name", "reg.test/base/app", Grants{}, nil, "preloaded allowlist"},
		{"allowed by its exact name", "reg.test/tool", Grants{byLogin}, nil, "allowlist"},
		{"below an exact name", "reg.test/tool/x", Grants{byLogin}, nil, ""},
		{"a name that begins like an allowed one", "reg.test/bases/app", Grants{byLogin}, nil, ""},
		{"pulled, and named by the administrator", "localhost/app", Grants{byLogin, loaded}, nil, "preloaded"},
		{"pulled, and named otherwise", "reg.test/team/app", Grants{byLogin, loaded}, nil, ""},
		{"the ID of an image that the administrator named", "", Grants{byLogin, loaded}, nil, "preloaded"},
		{"a damaged record", "reg.test/team/app", Grants{{Kind: Login}}, []Credential{alice, {}}, ""},
		{"a damaged record, the ID", "", Grants{{Kind: Login}}, []Credential{alice, {}}, ""},
		{"of before records", "reg.test/team/app", nil, nil, "preloaded"},
	} {
		for name, mode := range map[string]string{"preloaded": NeverVerifyPreloaded, "allowlist": NeverVerifyAllowlist, "always": AlwaysVerify, "never": NeverVerify, "default": ""} {
			var allow []string
			if mode == NeverVerifyAllowlist {
				allow = []string{"reg.test/base/*", "reg.test/tool"}
			}
			p, err := NewPolicy(mode, allow)
			if err != nil {
				t.Fatal(err)
			}
			if name == "default" {
				p, name = Policy{}, "preloaded"
			}
			want := name == "never" || strings.Contains(c.want, name)
			if got := p.Allows(c.repository, c.grants, func(string) []Credential { return c.logins }); got != want {
				t.Errorf("%s, %s: %t, want %t", c.what, mode, got, want)
			}
		}
	}
}

// A login for one repository counts there only.
func TestLoginsOfRepository(t *testing.T) {
	t.Parallel()
	other := Grant{Repository: "other.test/app", Kind: Login, Hash: Hash("bob", "b", "")}
	logins := func(repository string) []Credential {
		if repository == "reg.test/team/app" {
			return []Credential{{Hash: other.Hash}}
		}
		return nil
	}
	if (Policy{}).Allows("", Grants{byLogin, other}, logins) {
		t.Error("a login for one registry allows what that of another one has pulled")
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for _, g := range []Grant{byLogin, bySeen, byNode, loaded} {
		g.Since = time.Unix(1700000000, 0).UTC()
		if got, err := Decode(g.Key(), g.Encode()); err != nil || got.Encode() != g.Encode() {
			t.Errorf("%+v is decoded as %+v, %v", g, got, err)
		}
		if n := len(g.Encode()); n > 2048 {
			t.Errorf("a grant has %d bytes", n)
		}
		forged := g
		forged.Kind, forged.Hash, forged.Secret = Node, "", nil
		for what, text := range map[string]string{"nothing": "", "no JSON": g.Encode()[1:], "null": "null", "cut": g.Encode()[:20], "other": forged.Encode(), "no kind": strings.Replace(g.Encode(), string(g.Kind), "", 1)} {
			if text == g.Encode() {
				continue
			}
			got, err := Decode(g.Key(), text)
			if err == nil || (Policy{}).Allows("", Grants{got}, func(string) []Credential { return []Credential{{}, {Hash: byLogin.Hash, Secret: secret}} }) {
				t.Errorf("%s: %+v, %v", what, got, err)
			}
		}
	}
}

// The grants of an image are bounded, and the oldest logins go first.
func TestAddIsBounded(t *testing.T) {
	t.Parallel()
	s := Grants{byNode, loaded, {Repository: "other.test/app", Kind: Login, Hash: "kept"}}
	var gone []string
	for i := range 2 * maxGrants {
		g := Grant{Repository: "reg.test/team/app", Kind: Login, Hash: fmt.Sprint(i), Since: time.Unix(int64(i), 0)}
		var dropped []string
		s, dropped = s.Add(g)
		s, _ = s.Add(g) // the same one again changes nothing
		gone = append(gone, dropped...)
	}
	if len(s) != maxGrants+3 || len(gone) != maxGrants || s[3].Hash != fmt.Sprint(maxGrants) {
		t.Errorf("%d grants, of which %d are gone, the oldest %s", len(s), len(gone), s[3].Hash)
	}
	other := bySeen
	other.Hash = "newer"
	if s, _ := (Grants{bySeen}).Add(other); len(s) != 1 || s[0].Hash != "newer" {
		t.Errorf("a Secret with a new login has the grants %+v", s)
	}
}

func TestNewPolicy(t *testing.T) {
	t.Parallel()
	for mode, ok := range map[string]bool{"": true, AlwaysVerify: true, NeverVerify: true, "always": false} {
		if _, err := NewPolicy(mode, nil); (err == nil) != ok {
			t.Errorf("%q: %v", mode, err)
		}
	}
	for pattern, ok := range map[string]bool{
		"reg.test/app": true, "reg.test:5000/app": true, "reg.test/team/*": true, "reg.test/*": true, "localhost/app": true,
		"": false, "/*": false, "*": false, "reg.test/*/app": false, "reg.test/app:1": false, "reg.test/app@sha256:x": false,
		"reg.test": false, " reg.test/app": false, "reg.test/app*": false, "app": false, "team/app": false, "reg.test/": false,
	} {
		if _, err := NewPolicy(NeverVerifyAllowlist, []string{pattern}); (err == nil) != ok {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
