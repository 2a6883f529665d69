#include "ir/parse_decl.h"

#include "ir/print.h"

namespace graphene::ir {

std::string DeclReader::header() {
  skip_newlines();
  if (!accept_name("kernel")) expected("'kernel', the start of the header line");
  const Token& at_name = tok();
  std::string kernel_name = string("the kernel's name in quotes");
  if (!accept_name("format")) expected("'format='");
  expect("=");
  const Token& at_format = tok();
  const std::int64_t format = integer("a format version");
  if (format != kTextFormat)
    source_.fail_at(at_format.offset, Code::IR_FORMAT, "a text of another format version",
                    {"want: " + std::to_string(kTextFormat), "got:  " + std::to_string(format)},
                    "read it with the version of Graphene that wrote it");
  // The name is checked where its position is known; the kernel itself is made from the returned copy.
  at(at_name, [&] { return Assembler(kernel_name); });
  end_of_statement();
  return kernel_name;
}

bool DeclReader::declaration() {
  if (tok().is_name("symbol") && tok(1).kind == Tok::Name) {
    advance();
    const Token& t = tok();
    const std::string n(name("the name of a symbol"));
    const FactsDecl f = facts();
    at(t, [&] { as_.symbol(n, f); });
    return true;
  }
  if (tok().is_name("param") && tok(1).kind == Tok::Name) {
    param();
    return true;
  }
  if (tok().is("%") && is_argument()) {
    argument();
    return true;
  }
  if (tok().is("#") && is_launch()) {
    const Token& t = tok();
    const int id = id_after('#');
    expect(":");
    const ThreadTypeDecl type = thread_type();
    std::int64_t cluster = 1;
    if (accept_name("cluster")) {
      expect("=");
      cluster = integer("blocks of a cluster");
    }
    at(t, [&] { as_.launch(id, type, cluster); });
    return true;
  }
  return false;
}

// On this line stands "= input", "= output" or "= inout".
bool DeclReader::is_argument() const {
  for (std::size_t i = 0; tok(i).kind != Tok::Newline && tok(i).kind != Tok::End; ++i)
    if (tok(i).is("=")) return role_of(tok(i + 1)) != Role::Free;
  return false;
}

bool DeclReader::is_launch() const {
  for (std::size_t i = 0; tok(i).kind != Tok::Newline && tok(i).kind != Tok::End; ++i)
    if (tok(i).is("=")) return tok(i - 1).is_name("cluster");
  return true;
}

Role DeclReader::role_of(const Token& t) {
  if (t.is_name("input")) return Role::Input;
  if (t.is_name("output")) return Role::Output;
  if (t.is_name("inout")) return Role::InOut;
  return Role::Free;
}

void DeclReader::param() {
  advance();
  const Token& t = tok();
  const std::string n(name("the name of a parameter"));
  expect(":");
  const Token& at_type = tok();
  const auto dtype = scalar_type_from_name(name("an element type"));
  if (!dtype || info(*dtype).cls == ScalarInfo::Class::Bits)
    source_.fail_at(at_type.offset, Code::IR_PARSE, "no element type " + at_type.str());
  const FactsDecl f = facts();
  std::optional<int> id;
  if (tok().is("=")) {
    advance();
    id = id_after('%');
  }
  at(t, [&] { as_.param(n, *dtype, f, id); });
}

void DeclReader::argument() {
  const Token& t = tok();
  const int id = id_after('%');
  expect(":");
  const TypeDecl declared = type();
  expect("=");
  Buffer b;
  b.role = role_of(tok());
  advance();
  b.name = string("the argument's name in quotes");
  if (accept_name("count")) {
    expect("=");
    b.count = small("a number of tensors", 1, kMaxInt32);
  }
  if (accept_name("align")) {
    expect("=");
    b.align_bytes = small("an alignment", 1, kMaxInt32);
  }
  at(t, [&] { as_.argument(id, b, declared); });
}

FactsDecl DeclReader::facts() {
  FactsDecl f;
  for (;;) {
    const Token& t = tok();
    const bool number = t.is_name("min") || t.is_name("max") || t.is_name("multiple_of");
    const bool bound = t.is_name("lo") || t.is_name("hi");
    if (!(number || bound) || !tok(1).is("=")) return f;
    advance();
    advance();
    if (number) {
      (t.text == "min" ? f.min : t.text == "max" ? f.max : f.multiple_of) = integer("an integer");
      continue;
    }
    expect("(");
    std::optional<Expr>& value = (t.text == "lo" ? f.lo : f.hi).emplace();
    if (!tok().is(")")) value = expr();
    expect(")");
  }
}

void DeclReader::end_of_statement() {
  if (tok().kind == Tok::Newline) {
    skip_newlines();
    return;
  }
  if (tok().kind != Tok::End && !tok().is("}")) expected("the end of the line");
}

bool DeclReader::of_barrier(SyncStmt& s) {
  const std::string_view key = tok().text;
  const auto begin = [&](bool second) {
    if (second) fail_here(Code::IR_DUPLICATE, "a second " + tok().str());
    advance();
    expect("=");
  };
  if (!s.barrier) return false;
  if (key == "phase") {
    begin(s.phase.has_value());
    s.phase = expr();
  } else if (key == "expect") {
    begin(!s.expect.empty());
    expect("(");
    do s.expect.push_back(tensor_ref());
    while (comma());
    expect(")");
  } else if (key == "expect_bytes") {
    begin(!identical(s.expect_bytes, Expr(0)));
    s.expect_bytes = expr();
  } else if (key == "to") {
    begin(s.to != nullptr);
    s.to = thread_ref();
  } else {
    return false;
  }
  return true;
}

TensorPtr DeclReader::tensor_ref() {
  const Token& t = tok();
  const int id = id_after('%');
  return at(t, [&] { return as_.tensor(id); });
}

ThreadPtr DeclReader::thread_ref() {
  const Token& t = tok();
  if (at_type_of_threads()) {
    const ThreadTypeDecl type = thread_type();
    return at(t, [&] { return as_.each(type.unit); });
  }
  const int id = id_after('#');
  return at(t, [&] { return as_.threads(id); });
}

}  // namespace graphene::ir
