// Package sim runs the library in virtual time, over servers in memory that fail as a seed plans, and checks what the
// nodes had and what clients were told. It has tests only; what they touch of the inside goes through internal/inside.
package sim
