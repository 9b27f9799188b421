//go:build !invariants && !race

package invariants

// On reports whether the code looks.
const On = false
