package render

import (
	"cmp"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// ImageName is how an image is called in a line: by a tag, a digest or its ID.
func ImageName(i *huskv1.Image) string {
	if len(i.Tags) > 0 {
		return strings.Join(i.Tags, ", ")
	}
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return cmp.Or(ShortID(i.Id), none)
}

// ImageTable has a row for each tag; an image without one is shown by its digest's repository.
func ImageTable(images []*huskv1.Image, wide bool, now time.Time) *Table {
	header := []string{"REPOSITORY", "TAG", "ID", "SIZE", "AGE", "USED"}
	if wide {
		header = append(header, "PLATFORM", "DIGEST")
	}
	t := NewTable(header...)
	for _, i := range images {
		for _, name := range names(i) {
			repository, tag := splitTag(name)
			row := []any{orNone(repository), orNone(tag), orNone(ShortID(i.Id)), Size(i.Size), AgeAt(now, i.CreatedNs), yesNo(i.InUse)}
			if wide {
				row = append(row, orNone(i.Platform), orNone(digestOf(i, repository)))
			}
			t.Row(row...)
		}
	}
	return t
}

// names of i to list: its tags or, without any, one that has none.
func names(i *huskv1.Image) []string {
	switch {
	case len(i.Tags) > 0:
		return i.Tags
	case len(i.Digests) > 0:
		return i.Digests[:1]
	default:
		return []string{""}
	}
}

// splitTag splits a reference into its repository and its tag. The colon of a registry's port is no
// tag's.
func splitTag(ref string) (repository, tag string) {
	ref, _, _ = strings.Cut(ref, "@")
	if colon := strings.LastIndexByte(ref, ':'); colon > strings.LastIndexByte(ref, '/') {
		return ref[:colon], ref[colon+1:]
	}
	return ref, ""
}

// digestOf is the digest that i has in the repository.
func digestOf(i *huskv1.Image, repository string) string {
	for _, d := range i.Digests {
		if name, digest, found := strings.Cut(d, "@"); found && name == repository {
			return digest
		}
	}
	return ""
}
