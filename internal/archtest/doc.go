// Package archtest tests the architecture: which packages may import which others, how large files,
// functions, types and packages may be, and that every package has a doc comment. The tables are in
// the test files.
package archtest
