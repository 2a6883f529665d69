#include "atoms/registry.h"

#include <algorithm>

#include "atoms/parse.h"

namespace graphene::atoms {

// The files of atoms/entries, each with the function of its name, as CMakeLists.txt found them.
namespace subjects {
#define GRAPHENE_SUBJECT(file) void file(std::vector<Atom>& list);
GRAPHENE_SUBJECTS
#undef GRAPHENE_SUBJECT
}  // namespace subjects

namespace {

bool share(const std::vector<ir::ScalarType>& a, const std::vector<ir::ScalarType>& b) {
  return std::any_of(a.begin(), a.end(), [&](ir::ScalarType t) { return std::find(b.begin(), b.end(), t) != b.end(); });
}

bool share(const std::vector<ir::Memory>& a, const std::vector<ir::Memory>& b) {
  return std::any_of(a.begin(), a.end(), [&](ir::Memory m) { return std::find(b.begin(), b.end(), m) != b.end(); });
}

bool same_function(const FlatLayout& a, const FlatLayout& b) {
  const std::int64_t n = a.size();
  if (n != b.size()) return false;
  for (std::int64_t i = 0; i < n; ++i) {
    if (a(i) != b(i)) return false;
  }
  return true;
}

// Could one view match both patterns?
bool overlap(const OperandInstance& a, const OperandInstance& b) {
  if (a.values != b.values || !share(a.type.memories, b.type.memories) || !share(a.type.dtypes, b.type.dtypes)) {
    return false;
  }
  if (a.type.levels.size() != b.type.levels.size()) return false;
  const bool registers = a.type.accepts(ir::Memory::RF) && b.type.accepts(ir::Memory::RF);
  for (std::size_t l = 0; l < a.type.levels.size(); ++l) {
    const Layout& x = a.type.levels[l];
    const Layout& y = b.type.levels[l];
    if (x.rank() != y.rank()) return false;
    for (int m = 0; m < x.rank(); ++m) {
      if (!identical(x.mode(m).size(), y.mode(m).size())) return false;
    }
    if (registers) continue;
    const FlatLayout fx = flatten(x);
    const FlatLayout fy = flatten(y);
    for (std::size_t i = 0; i < fx.stride.size() && fx.stride.size() == fy.stride.size(); ++i) {
      const bool any = a.type.any_stride[l][i] || b.type.any_stride[l][i];
      if (!any && fx.shape[i] > 1 && fx.stride[i] != fy.stride[i]) return false;
    }
  }
  return true;
}

bool overlap(const std::vector<OperandInstance>& a, const std::vector<OperandInstance>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!overlap(a[i], b[i])) return false;
  }
  return true;
}

const std::vector<std::string>* accepted(const Atom& a, const std::string& attr) {
  for (const AttrDef& d : a.attrs) {
    if (d.name == attr) return &d.accepts;
  }
  return nullptr;
}

// An attribute that one lists and the other does not: the other takes its default only; of Sync, which has no defaults,
// a statement that says it takes only the one.
bool attributes_overlap(const Atom& a, const Atom& b) {
  const auto takes = [](const std::vector<std::string>& list, const std::string& v) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& s) { return s[0] == '*' || s == v; });
  };
  for (const Atom* first : {&a, &b}) {
    const Atom& other = first == &a ? b : a;
    for (const AttrDef& d : first->attrs) {
      const std::vector<std::string>* theirs = accepted(other, d.name);
      if (theirs != nullptr) {
        if (std::none_of(d.accepts.begin(), d.accepts.end(),
                         [&](const std::string& s) { return s[0] == '*' || takes(*theirs, s); })) {
          return false;
        }
        continue;
      }
      if (a.kind == Kind::Sync) return false;
      for (const KindAttr& k : kind_attrs(spec_kind(a.kind))) {
        if (k.name == d.name && !k.required && !takes(d.accepts, k.fallback)) return false;
      }
    }
  }
  return true;
}

}  // namespace

bool overlap(const Instance& a, const Instance& b) {
  if (a.atom.kind != b.atom.kind || a.out.size() != b.out.size() || a.in.size() != b.in.size()) return false;
  if (a.thread_count != b.thread_count) return false;
  if (a.arch_min == 0 && b.arch_min == 0 && a.atom.arch != b.atom.arch) return false;
  if (a.arch_min != 0 && b.arch_min == 0 && !a.runs_on(b.atom.arch)) return false;
  if (a.arch_min == 0 && b.arch_min != 0 && !b.runs_on(a.atom.arch)) return false;
  if (!overlap(a.out, b.out) || !overlap(a.in, b.in)) return false;
  if (!attributes_overlap(a.atom, b.atom)) return false;
  return same_function(flatten(a.threads), flatten(b.threads));
}

Registry& Registry::get() {
  static Registry registry;
  return registry;
}

Registry::Registry() {
  std::vector<Atom> list;
#define GRAPHENE_SUBJECT(file) subjects::file(list);
  GRAPHENE_SUBJECTS
#undef GRAPHENE_SUBJECT
  for (Atom& a : list) templates_.push_back({std::move(a), {}, {}});
}

// A family is wide where its members are few kernels' each: one is made without the others.
const InstancePtr& Registry::at(MemberIndex p) {
  Template& t = templates_[p.first];
  if (t.members.empty()) {
    t.expanded = expand_family(t.atom);
    t.members.resize(t.expanded.size());
  }
  InstancePtr& member = t.members[p.second];
  if (member == nullptr) member = std::make_shared<const Instance>(instantiate(std::move(t.expanded[p.second])));
  return member;
}

const std::vector<InstancePtr>& Registry::members(std::size_t i) {
  (void)at({i, 0});
  for (std::size_t m = 0; m < templates_[i].members.size(); ++m) (void)at({i, m});
  return templates_[i].members;
}

// Names alone: the other strings stay as they are.
void Registry::read_names() {
  if (names_read_) return;
  names_read_ = true;
  for (std::size_t t = 0; t < templates_.size(); ++t) {
    Atom named;
    named.name = templates_[t].atom.name;
    named.family = templates_[t].atom.family;
    const std::vector<Atom> members = expand_family(named);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::string& name = members[m].name;
      GR_ASSERT(by_name_.emplace(name, MemberIndex{t, m}).second, "two entries are called " + name);
      by_family_[name.substr(0, name.find('/'))].emplace_back(t, m);
      names_.push_back(name);
    }
  }
}

const std::vector<InstancePtr>& Registry::of_kind(Kind k) {
  const auto i = static_cast<std::size_t>(k);
  if (!kind_read_.at(i)) {
    kind_read_.at(i) = true;
    for (std::size_t t = 0; t < templates_.size(); ++t) {
      if (templates_[t].atom.kind != k) continue;
      const auto& list = members(t);
      by_kind_.at(i).insert(by_kind_.at(i).end(), list.begin(), list.end());
    }
  }
  return by_kind_.at(i);
}

const std::vector<InstancePtr>& Registry::defaults(Kind k) {
  const auto i = static_cast<std::size_t>(k);
  if (!defaults_read_.at(i)) {
    defaults_read_.at(i) = true;
    for (std::size_t t = 0; t < templates_.size(); ++t) {
      if (templates_[t].atom.kind != k || !templates_[t].atom.is_default) continue;
      const auto& list = members(t);
      defaults_.at(i).insert(defaults_.at(i).end(), list.begin(), list.end());
    }
  }
  return defaults_.at(i);
}

const std::vector<InstancePtr>& Registry::all() {
  if (!all_read_) {
    all_read_ = true;
    for (std::size_t t = 0; t < templates_.size(); ++t) {
      const auto& list = members(t);
      all_.insert(all_.end(), list.begin(), list.end());
    }
  }
  return all_;
}

InstancePtr Registry::find(const std::string& name) {
  read_names();
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : at(it->second);
}

InstancePtr Registry::sized(const InstancePtr& member, std::int64_t elems) {
  InstancePtr& kept = sized_[{member->atom.name, elems}];
  if (kept != nullptr) return kept;
  read_names();
  const MemberIndex place = by_name_.at(member->atom.name);
  Atom a = templates_[place.first].atom;
  for (Param& p : a.family) {
    if (p.names == std::vector<std::string>{a.free}) p.rows = {{std::to_string(elems)}};
  }
  Instance made = instantiate(std::move(expand_family(a).at(place.second)));
  made.builtin = member->builtin;
  return kept = std::make_shared<const Instance>(std::move(made));
}

std::vector<InstancePtr> Registry::family(const std::string& name) {
  read_names();
  std::vector<InstancePtr> out;
  if (const auto it = by_family_.find(name); it != by_family_.end()) {
    for (const MemberIndex& p : it->second) out.push_back(at(p));
  } else if (InstancePtr one = find(name)) {
    out.push_back(std::move(one));
  }
  return out;
}

const std::vector<std::string>& Registry::names() {
  read_names();
  return names_;
}

std::vector<std::string> Registry::family_names() {
  read_names();
  std::vector<std::string> out;
  for (const auto& [name, places] : by_family_) out.push_back(name);
  return out;
}

void Registry::check_new(const Instance& i) {
  read_names();
  if (by_name_.count(i.atom.name) > 0) {
    fail(Code::ATOM_DEFINITION, i.atom.name + " is defined already", {}, "choose another name");
  }
  if (!i.atom.is_default) return;
  for (const InstancePtr& other : of_kind(i.atom.kind)) {
    if (other->atom.is_default && overlap(i, *other)) {
      fail(Code::ATOM_OVERLAP, i.atom.name + " and " + other->atom.name + " would both match one leaf",
           {"both are defaults of " + std::string(name(i.atom.kind))},
           "set is_default=False: it is then reached by atom= or an attribute");
    }
  }
}

void Registry::check_overlaps() {
  const std::vector<InstancePtr>& list = all();
  for (std::size_t x = 0; x < list.size(); ++x) {
    for (std::size_t y = 0; y < x; ++y) {
      if (list[x]->atom.is_default && list[y]->atom.is_default && overlap(*list[x], *list[y])) {
        fail(Code::ATOM_OVERLAP, list[x]->atom.name + " and " + list[y]->atom.name + " would both match one leaf");
      }
    }
  }
}

void Registry::add(InstancePtr i) {
  check_new(*i);
  (void)all();
  (void)of_kind(i->atom.kind);
  (void)defaults(i->atom.kind);
  const MemberIndex place{templates_.size(), 0};
  by_name_.emplace(i->atom.name, place);
  by_family_[i->family].push_back(place);
  names_.push_back(i->atom.name);
  const auto kind = static_cast<std::size_t>(i->atom.kind);
  by_kind_.at(kind).push_back(i);
  if (i->atom.is_default) defaults_.at(kind).push_back(i);
  all_.push_back(i);
  templates_.push_back({i->atom, {}, {std::move(i)}});
}

InstancePtr find(const std::string& name) { return Registry::get().find(name); }

std::vector<InstancePtr> find_family(const std::string& name) { return Registry::get().family(name); }

std::vector<InstancePtr> require_family(const std::string& name, const SourceLoc& where, std::vector<std::string> ir) {
  std::vector<InstancePtr> found = find_family(name);
  if (!found.empty()) return found;
  std::string list;
  for (const std::string& n : similar_names(name)) list += (list.empty() ? "" : ", ") + n;
  Diagnostic d;
  d.code = Code::ATOM_UNKNOWN;
  d.where = where;
  d.message = "no atomic spec is called `" + name + "`";
  d.ir = std::move(ir);
  if (!list.empty()) d.details.push_back("similar: " + list);
  d.fix = "gr.atoms() lists them all";
  throw Error(std::move(d));
}

const std::vector<InstancePtr>& entries() { return Registry::get().all(); }

std::vector<std::string> similar_names(const std::string& name) {
  const auto distance = [&name](const std::string& other) {
    std::vector<std::size_t> row(other.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < other.size(); ++j) {
        const std::size_t above = row[j + 1];
        row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (name[i] == other[j] ? 0 : 1)});
        diagonal = above;
      }
    }
    return row.back();
  };
  std::vector<std::pair<std::size_t, std::string>> found;
  if (name.size() > 100) return {};
  for (const std::string& family : Registry::get().family_names()) {
    // A part of a name is nearer than its length suggests.
    const bool part = family.find(name) != std::string::npos || name.find(family) != std::string::npos;
    const std::size_t d = part ? 1 : distance(family);
    if (d * 2 <= std::max<std::size_t>(name.size(), 4)) found.emplace_back(d, family);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> out;
  for (const auto& [d, family] : found) {
    if (out.size() < 4) out.push_back(family);
  }
  return out;
}

namespace {

// A completion domain that nothing commits or waits for would never complete.
void check_domain(Registry& registry, const Atom& a) {
  if (a.done == "now" || a.done.starts_with("mbarrier:")) return;  // phases are waited for by themselves
  const std::string scope = a.done.substr(a.done.find(':') + 1);
  std::string known;
  for (const InstancePtr& e : registry.of_kind(Kind::Sync)) {
    const std::vector<std::string>* ops = accepted(e->atom, "op");
    const std::vector<std::string>* scopes = accepted(e->atom, "scope");
    if (ops == nullptr || scopes == nullptr || std::ranges::find(*ops, "wait") == ops->end()) continue;
    for (const std::string& s : *scopes) {
      if (s == scope) return;
      if (known.find(s) == std::string::npos) known += (known.empty() ? "known: " : ", ") + s;
    }
  }
  fail(Code::ATOM_DEFINITION, a.name + ": nothing waits for `" + scope + "`, where done is \"" + a.done + "\"", {known},
       "define the Sync entries of its commit and wait first");
}

}  // namespace

std::vector<InstancePtr> define(const Atom& atom) {
  Registry& registry = Registry::get();
  std::vector<InstancePtr> out;
  for (Atom& a : expand_family(atom)) {
    Instance i = instantiate(std::move(a));
    i.builtin = false;
    out.push_back(std::make_shared<const Instance>(std::move(i)));
  }
  if (out.empty()) fail(Code::ATOM_DEFINITION, atom.name + ": a family without rows");
  for (std::size_t x = 0; x < out.size(); ++x) {
    check_domain(registry, out[x]->atom);
    registry.check_new(*out[x]);
    for (std::size_t y = 0; y < x; ++y) {
      if (out[x]->atom.name == out[y]->atom.name) {
        fail(Code::ATOM_DEFINITION, out[x]->atom.name + ": two members of the family have this name");
      }
      if (out[x]->atom.is_default && overlap(*out[x], *out[y])) {
        fail(Code::ATOM_OVERLAP, out[x]->atom.name + " and " + out[y]->atom.name + " would both match one leaf");
      }
    }
  }
  for (const InstancePtr& i : out) registry.add(i);
  return out;
}

}  // namespace graphene::atoms
