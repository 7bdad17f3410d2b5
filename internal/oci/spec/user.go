package spec

import (
	"bytes"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UserRequest is the input of ResolveUser.
type UserRequest struct {
	// Image is its name for messages.
	Image string
	// ImageUser is the USER of the image's config: "", "u" or "u:g", with names or numbers.
	ImageUser string
	Security  *runtimeapi.LinuxContainerSecurityContext
}

// maxID is the largest user and group ID. For the kernel -1 means none.
const maxID = math.MaxUint32 - 1

// ResolveUser returns the user that a container runs as, and its home directory, "/" if unknown.
// passwd and group are the contents of the image's /etc/passwd and /etc/group, and may be nil.
// Malformed lines are ignored.
//
// The security context's user overrides the image's. If both are the same user and the security
// context sets no group, the image's group applies: the kubelet always sends the user part of the
// image's USER, and the group would be lost. Without any group the user has that of /etc/passwd, or
// 0.
//
// The additional groups begin with the user's own. They include the groups with the user as a
// member in /etc/group, unless the policy is Strict.
func ResolveUser(r UserRequest, passwd, group []byte) (specs.User, string, error) {
	const prefix = "linux.security_context."
	s := r.Security
	userPart, groupPart, err := r.asked()
	if err != nil {
		return specs.User{}, "", err
	}
	user, known, ok := lookupUser(userPart, parsePasswd(passwd))
	if !ok {
		return specs.User{}, "", invalid("user", "%q is not in /etc/passwd of image %s: use its number", userPart, r.Image)
	}
	groups := parseGroup(group)
	gid := user.gid
	if groupPart != "" {
		if gid, ok = lookupGroup(groupPart, groups); !ok {
			return specs.User{}, "", invalid("group", "%q is not in /etc/group of image %s: use its number", groupPart, r.Image)
		}
	}
	out := specs.User{UID: user.uid, GID: gid}
	more := []uint32{gid}
	switch s.GetSupplementalGroupsPolicy() {
	case runtimeapi.SupplementalGroupsPolicy_Merge:
		for _, g := range groups {
			if known && slices.Contains(g.members, user.name) {
				more = append(more, g.gid)
			}
		}
	case runtimeapi.SupplementalGroupsPolicy_Strict:
	default:
		return specs.User{}, "", invalid(prefix+"supplemental_groups_policy", "unknown policy %d", s.GetSupplementalGroupsPolicy())
	}
	for _, g := range s.GetSupplementalGroups() {
		if g < 0 || g > maxID {
			return specs.User{}, "", invalid(prefix+"supplemental_groups", "%d is not within 0…%d", g, uint32(maxID))
		}
		more = append(more, uint32(g))
	}
	for _, g := range more {
		if !slices.Contains(out.AdditionalGids, g) {
			out.AdditionalGids = append(out.AdditionalGids, g)
		}
	}
	return out, user.home, nil
}

// asked returns the user and group to look up, each a name or a number. The group may be empty.
func (r UserRequest) asked() (string, string, error) {
	const prefix = "linux.security_context."
	s := r.Security
	imageUser, imageGroup, _ := strings.Cut(r.ImageUser, ":")
	if imageUser == "" {
		imageUser = "0"
	}
	user, name, gid := s.GetRunAsUser(), s.GetRunAsUsername(), s.GetRunAsGroup()
	switch {
	case user != nil && name != "":
		return "", "", invalid(prefix+"run_as_username", "run_as_user is set too: set one of them")
	case gid != nil && user == nil && name == "":
		return "", "", invalid(prefix+"run_as_group", "needs run_as_user or run_as_username too")
	case user != nil && (user.GetValue() < 0 || user.GetValue() > maxID):
		return "", "", invalid(prefix+"run_as_user", "%d is not within 0…%d", user.GetValue(), uint32(maxID))
	case gid != nil && (gid.GetValue() < 0 || gid.GetValue() > maxID):
		return "", "", invalid(prefix+"run_as_group", "%d is not within 0…%d", gid.GetValue(), uint32(maxID))
	}
	switch {
	case user != nil:
		name = strconv.FormatInt(user.GetValue(), 10)
	case name == "":
		name = imageUser
	}
	switch {
	case gid != nil:
		return name, strconv.FormatInt(gid.GetValue(), 10), nil
	case name == imageUser:
		return name, imageGroup, nil
	}
	return name, "", nil
}

type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

// parsePasswd parses lines of name:password:uid:gid:comment:home:shell. Small images leave out the
// last fields.
func parsePasswd(content []byte) []passwdEntry {
	var out []passwdEntry
	for fields := range lines(content, 4) {
		uid, okUser := parseID(fields[2])
		gid, okGroup := parseID(fields[3])
		if !okUser || !okGroup {
			continue
		}
		home := "/"
		if len(fields) > 5 && strings.HasPrefix(fields[5], "/") {
			home = fields[5]
		}
		out = append(out, passwdEntry{fields[0], uid, gid, home})
	}
	return out
}

// parseGroup parses lines of name:password:gid:member,member.
func parseGroup(content []byte) []groupEntry {
	var out []groupEntry
	for fields := range lines(content, 3) {
		gid, ok := parseID(fields[2])
		if !ok {
			continue
		}
		entry := groupEntry{name: fields[0], gid: gid}
		if len(fields) > 3 {
			entry.members = strings.Split(fields[3], ",")
		}
		out = append(out, entry)
	}
	return out
}

// lines yields the fields of each line that has a name and at least that many fields.
func lines(content []byte, atLeast int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(content) {
			fields := strings.Split(strings.TrimSpace(string(line)), ":")
			if len(fields) >= atLeast && fields[0] != "" && !strings.HasPrefix(fields[0], "#") && !yield(fields) {
				return
			}
		}
	}
}

func parseID(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n <= maxID
}

// lookupUser finds a user by name or number. A number need not be in the file; known says whether
// it is. A number is never looked up as a name, or an image could name its root "1000" to
// circumvent runAsNonRoot.
func lookupUser(text string, entries []passwdEntry) (user passwdEntry, known, ok bool) {
	uid, number := parseID(text)
	for _, e := range entries {
		if number && e.uid == uid || !number && e.name == text {
			return e, true, true
		}
	}
	return passwdEntry{uid: uid, home: "/"}, false, number
}

func lookupGroup(text string, entries []groupEntry) (uint32, bool) {
	if gid, ok := parseID(text); ok {
		return gid, true
	}
	for _, e := range entries {
		if e.name == text {
			return e.gid, true
		}
	}
	return 0, false
}
