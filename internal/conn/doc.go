// Package conn is the connections to one node: it implements [lane.Wire] and is certain about which
// server answers on a connection.
//
// A connection to a server is a conversation: a socket, and the identity of the server that answers.
// [Conversations] keeps those with one node. A batch has one of them to itself. When a batch is not
// answered in time, a fresh conversation is tried; if that is answered and the first stays silent, the
// first is over: it is closed with a reset, so that our system sends nothing more of it, and its batch
// returns without an answer. A server that hangs answers on neither, so nothing is over, and late
// answers are still read. So it is while a server lets writes wait: a fresh conversation begins with a
// script.
//
// What it promises upwards:
//   - A request is sent once.
//   - The observer of a lane ([lane.Onlooker]) is told which server answers, and what its memory mark
//     says, before any answer of that connection is delivered. A batch with a SET goes out where
//     that is known, or else its grants do not count.
//   - What votes rest on is asked for when a conversation begins, and once a second while it is in use. A server that
//     does not tell, or does not serve us, is asked again after a pause; meanwhile callers get its words.
//   - No reply counts whose place is in doubt. What is no reply ends its connection, and the rest of
//     the batch has no answer; where more came than was asked for, none of the batch has one.
//
// What it expects downwards: a client's options, of which the Dialer, providers of credentials and OnConnect
// are used as they are. The rest is written and read here (resp.go).
//
// One mutex guards the conversations with a node and what each says. It is not held across I/O, and
// none but the clock's is taken under it. A flow is used by one goroutine at a time.
//
// Where to look: conversation.go has the life of a conversation and how a batch finds one, fresh.go
// where new ones come from, end.go those that are overdue and how they are ended, dial.go sockets and
// batches, resp.go their bytes, greeting.go and flow.go the questions to a server, questions.go how they are
// asked, pause.go when again, conn.go the way to a node and its channel.
package conn
