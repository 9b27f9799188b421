// Package protocol is what is said to a node, and what its answers mean: requests, the Lua scripts
// and their arguments, replies read as one of five kinds of answer, the memory mark, and what a
// server reports of itself. It does no I/O but for the commands that it makes, and knows neither
// quorums nor votes nor the options of a lock.
//
// What it promises upwards:
//   - A [Request] is immutable once it was sent. It says what is wanted in fields; the only place
//     that knows where a script expects which key or argument is the table in operations.go.
//   - [Answer.Read] gives each reply one [Kind]. [Granted] and [Refused] come from the node itself.
//     [NotSent] is certain: no byte of the request left, and none will. [Unknown] promises nothing:
//     the request may have taken effect, may do so later, or never. [Failed] is a server's error,
//     which scripts may return after a part of their work; [HalfWay] says which errors can.
//   - Expiry is always relative (PX), so that no clock of a client decides when a node's key ends.
//
// What it expects downwards: [Words] that take a request's words in order, and replies that are read
// as go-redis reads them.
//
// Adding an operation: a row of the table in operations.go, which says what errors call it, how its
// answers are read, and the words that its script is given; and the script in scripts/. A request
// that carries something new has it as a field, set by its constructor in request.go. The twin in
// package fakenode is a function and its row in twins. The contract test runs both side by side on
// real servers.
//
// It has no mutex. Values are safe for concurrent use as long as they are only read.
package protocol
