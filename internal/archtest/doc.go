// Package archtest holds the architecture as tests: who may import whom, how
// large a file, function or package may grow, and what every package must say
// of itself. The tables are in its test files.
package archtest
