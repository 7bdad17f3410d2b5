// Command testimage writes one of the test images to a file:
//
//	testimage FLAVOUR FILE.tar
//
// The flavours are busybox, users and web. The image's name is localhost/FLAVOUR:1.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/huskd/husk/test/testimage"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flavours := []testimage.Flavour{testimage.Busybox, testimage.Users, testimage.Web}
	if len(args) != 2 || !slices.Contains(flavours, testimage.Flavour(args[0])) {
		return fmt.Errorf("want a flavour, one of %v, and the file to write", flavours)
	}
	img, err := testimage.Build(context.Background(), testimage.Spec{Flavour: testimage.Flavour(args[0]), Layers: 2})
	if err != nil {
		return err
	}
	// Rename at the end, so that the file never exists in part.
	tmp, err := os.CreateTemp(filepath.Dir(args[1]), ".testimage-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if err := testimage.WriteArchive(tmp, testimage.Named{Image: img, Names: []string{"localhost/" + args[0] + ":1"}}); err != nil {
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), args[1])
}
