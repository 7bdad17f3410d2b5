// Package crashpoint names the places between two effects where a test kills
// the daemon. In ordinary builds Hit does nothing and compiles to nothing; a
// binary built with the tag `crashpoint` obeys the environment, see Env.
package crashpoint

// Env names the variable that says where a binary built with the tag
// `crashpoint` kills itself with SIGKILL: the name given to Hit, or "name#n"
// for the nth time that it is reached. With EnvTrace, every name reached is
// appended to that file, a line each.
const (
	Env      = "HUSK_CRASHPOINT"
	EnvTrace = "HUSK_CRASHPOINT_TRACE"
)
