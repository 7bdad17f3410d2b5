// Package crashpoint marks the places between two effects where tests kill the daemon. In ordinary
// builds Hit compiles to nothing. A binary built with the tag `crashpoint` obeys the environment,
// see Env.
package crashpoint

// Env names the environment variable with the crash point at which a binary built with the tag
// `crashpoint` kills itself: a name passed to Hit, or "name#n" for the nth time that it is reached.
// EnvTrace names the variable with the path of a file. The binary appends a line with each name
// that is reached to it.
const (
	Env      = "HUSK_CRASHPOINT"
	EnvTrace = "HUSK_CRASHPOINT_TRACE"
)
