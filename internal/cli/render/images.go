package render

import (
	"cmp"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// ImageName returns the name of an image for a line of text: its tags, a digest or its ID.
func ImageName(i *huskv1.Image) string {
	if len(i.Tags) > 0 {
		return strings.Join(i.Tags, ", ")
	}
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return cmp.Or(ShortID(i.Id), none)
}

// ImageTable returns a table with a row for each tag. An image without tags is shown by the
// repository of its digest.
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

// names returns the names to list for i: its tags or else one name without a tag.
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

// splitTag splits a reference into repository and tag. The colon before a registry's port starts no
// tag.
func splitTag(ref string) (repository, tag string) {
	ref, _, _ = strings.Cut(ref, "@")
	if colon := strings.LastIndexByte(ref, ':'); colon > strings.LastIndexByte(ref, '/') {
		return ref[:colon], ref[colon+1:]
	}
	return ref, ""
}

// digestOf returns the digest of i in the repository.
func digestOf(i *huskv1.Image, repository string) string {
	for _, d := range i.Digests {
		if name, digest, found := strings.Cut(d, "@"); found && name == repository {
			return digest
		}
	}
	return ""
}
