package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// swapped is what an operator becomes.
var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.INC: token.DEC, token.DEC: token.INC, token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
}

// generated are faults that no author thought of: each operator of a file is swapped, each condition turned round,
// each call and assignment left out. Generators that others offer run the tests of the package that they change, all
// of them; quorum.go and the clocks have theirs elsewhere, and the guard's explorer takes too long for each.
func generated(dir, file string) (all []mutant, err error) {
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(from, to token.Pos, with, what string) {
		at := fset.Position(from)
		old := string(text[at.Offset:fset.Position(to).Offset])
		all = append(all, mutant{
			name: fmt.Sprintf("%s:%d:%d-%s", strings.TrimSuffix(filepath.Base(file), ".go"), at.Line, at.Column, what),
			file: file, at: at.Offset, old: old, new: with, why: old + " becomes " + with,
		})
	}
	operator := func(at token.Pos, o token.Token) {
		if s, ok := swapped[o]; ok {
			add(at, at+token.Pos(len(o.String())), s.String(), "swapped")
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.IMPORT && n.Tok != token.CONST
		case *ast.BinaryExpr:
			operator(n.OpPos, n.Op)
		case *ast.IncDecStmt:
			operator(n.TokPos, n.Tok)
		case *ast.AssignStmt:
			if operator(n.TokPos, n.Tok); n.Tok != token.DEFINE {
				add(n.Pos(), n.End(), "", "left-out")
			}
		case *ast.ExprStmt:
			add(n.Pos(), n.End(), "", "left-out")
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+string(text[fset.Position(n.Cond.Pos()).Offset:fset.Position(n.Cond.End()).Offset])+")", "turned-round")
		}
		return true
	})
	return all, nil
}
