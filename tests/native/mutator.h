// Mutated texts: tokens, lines and bytes of seeds swapped, deleted, copied and replaced by what is at the edges.
#pragma once

#include <cctype>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace graphene::fuzz {

struct Mutator {
  std::mt19937_64 rng;
  std::vector<std::string> seeds;
  std::vector<std::vector<std::string>> tokens;  // of each seed; white space is a token

  std::size_t below(std::size_t n) { return n == 0 ? 0 : rng() % n; }
  bool chance(int percent) { return below(100) < static_cast<std::size_t>(percent); }

  static std::vector<std::string> split(const std::string& s) {
    std::vector<std::string> out;
    const auto kind = [](char c) {
      const auto u = static_cast<unsigned char>(c);
      if (std::isalnum(u) != 0 || c == '_') return 1;
      if (c == ' ') return 2;
      return 3;
    };
    for (std::size_t i = 0; i < s.size();) {
      std::size_t j = i + 1;
      while (kind(s[i]) != 3 && j < s.size() && kind(s[j]) == kind(s[i])) ++j;
      out.push_back(s.substr(i, j - i));
      i = j;
    }
    return out;
  }

  static std::string join(const std::vector<std::string>& parts) {
    std::string s;
    for (const auto& p : parts) s += p;
    return s;
  }

  static std::vector<std::string> lines(const std::string& s) {
    std::vector<std::string> out;
    std::istringstream in(s);
    for (std::string line; std::getline(in, line);) out.push_back(line + "\n");
    return out;
  }

  std::string interesting() {
    static const std::vector<std::string> words = {"0",
                                                   "1",
                                                   "-1",
                                                   "2147483648",
                                                   "9223372036854775807",
                                                   "9223372036854775808",
                                                   "-9223372036854775808",
                                                   "1e999",
                                                   "1.5",
                                                   "-0.0",
                                                   "1e-320",
                                                   "nan",
                                                   "inf",
                                                   "-inf",
                                                   "7",
                                                   "1023",
                                                   "1025",
                                                   "4294967296",
                                                   "_",
                                                   "()",
                                                   "[]",
                                                   "(1,)",
                                                   ":",
                                                   "=",
                                                   "%1",
                                                   "#4",
                                                   "@bm",
                                                   "//",
                                                   "%",
                                                   "^",
                                                   "<-",
                                                   "<<<",
                                                   ">>>",
                                                   "{",
                                                   "}",
                                                   "min(1,2)",
                                                   "max",
                                                   "not",
                                                   "and",
                                                   "true",
                                                   "null",
                                                   "\"",
                                                   "\\",
                                                   "\n",
                                                   "\t",
                                                   "\r\n",
                                                   "\xc3\xa9",
                                                   "\xff",
                                                   "scalar s = 0\n",
                                                   "exit_if(1)\n",
                                                   "expr(3)",
                                                   "Sw<3,3,3>",
                                                   "RF<tv>",
                                                   ".T",
                                                   ".values",
                                                   "unroll=full",
                                                   "{\"expr\": \"k+1\"}",
                                                   "{\"number\": \"nan\"}",
                                                   "[1, [2, 3]]",
                                                   "1.0",
                                                   "-3",
                                                   "\"k*2\"",
                                                   "true"};
    return words[below(words.size())];
  }

  std::string deep() {
    const std::size_t n = 1 + below(chance(20) ? 3000 : 300);
    std::string s;
    switch (below(6)) {
      case 0:
        return std::string(n, '(') + "1" + std::string(n, ')');
      case 1:
        return std::string(n, '[') + "1" + std::string(n, ']');
      case 2:
        for (std::size_t i = 0; i < n; ++i) s += "if(1) {\n";
        return s + (chance(50) ? std::string(n, '}') : "");
      case 3:
        for (std::size_t i = 0; i < n; ++i) s += "{\"a\":";
        return s + "1" + std::string(n, '}');
      case 4:
        for (std::size_t i = 0; i < n; ++i) s += "not -";
        return s + "1";
      default:
        s = "1";
        for (std::size_t i = 0; i < n; ++i) s += i % 2 == 0 ? "//3" : "%7";
        return s;
    }
  }

  void tokenwise(std::string& s) {
    std::vector<std::string> t = split(s);
    if (t.empty()) return;
    const auto& other = tokens[below(tokens.size())];
    const std::size_t i = below(t.size());
    switch (below(9)) {
      case 0:
        std::swap(t[i], t[below(t.size())]);
        break;
      case 1:
        t.erase(t.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      case 2:
        t.insert(t.begin() + static_cast<std::ptrdiff_t>(i), t[below(t.size())]);
        break;
      case 3:
        t[i] = other[below(other.size())];
        break;
      case 4:
        t[i] = interesting();
        break;
      default:
        alike(t);
    }
    s = join(t);
  }

  // A number for a number, a word for a word: stays close to what is accepted.
  void alike(std::vector<std::string>& t) {
    const auto kind = [](const std::string& w) {
      if (w[0] == ' ' || std::isalnum(static_cast<unsigned char>(w[0])) == 0) return 0;
      return std::isdigit(static_cast<unsigned char>(w[0])) != 0 ? 1 : 2;
    };
    for (std::size_t tries = 0; tries < 100; ++tries) {
      std::string& a = t[below(t.size())];
      const std::string& b = t[below(t.size())];
      if (kind(a) == 0 || (kind(a) == 2 && (kind(b) != 2 || chance(70)))) continue;
      if (kind(a) == 1) {
        static const std::vector<std::string> sizes = {"0", "1",  "2",  "3",  "4",   "7",
                                                       "8", "16", "32", "64", "128", "1024"};
        a = sizes[below(sizes.size())];
      } else {
        a = b;
      }
      return;
    }
  }

  void linewise(std::string& s) {
    std::vector<std::string> a = lines(s);
    if (a.empty()) return;
    const std::vector<std::string> b = lines(seeds[below(seeds.size())]);
    const auto i = static_cast<std::ptrdiff_t>(below(a.size()));
    const auto j = static_cast<std::ptrdiff_t>(below(a.size()));
    switch (below(4)) {
      case 0:
        a.erase(a.begin() + i);
        break;
      case 1:
        std::swap(a[static_cast<std::size_t>(i)], a[static_cast<std::size_t>(j)]);
        break;
      case 2:
        a.insert(a.begin() + i, a[static_cast<std::size_t>(j)]);
        break;
      default: {  // the head of one kernel, the tail of another
        const auto k = static_cast<std::ptrdiff_t>(below(b.size()));
        a.resize(static_cast<std::size_t>(i));
        a.insert(a.end(), b.begin() + k, b.end());
      }
    }
    s = join(a);
  }

  void bytewise(std::string& s) {
    if (s.empty()) return;
    const std::size_t i = below(s.size());
    switch (below(4)) {
      case 0:
        s[i] = static_cast<char>(s[i] ^ static_cast<char>(1U << below(8)));
        break;
      case 1:
        s.erase(i, 1 + below(chance(10) ? 200 : 3));
        break;
      case 2:
        s.insert(i, 1, static_cast<char>(rng()));
        break;
      default:
        s.resize(i);
    }
  }

  // One seed with a few numbers and words exchanged: what the stages behind the parser see.
  std::string alike() {
    std::vector<std::string> t = tokens[below(tokens.size())];
    for (std::size_t n = below(3); n > 0; --n) alike(t);
    return join(t);
  }

  std::string next() {
    std::string s = seeds[below(seeds.size())];
    const std::size_t n = 1 + below(3);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t which = below(100);
      if (which < 60)
        tokenwise(s);
      else if (which < 80)
        linewise(s);
      else if (which < 96)
        bytewise(s);
      else
        s.insert(below(s.size() + 1), chance(80) ? deep() : interesting());
    }
    return s;
  }
};

}  // namespace graphene::fuzz
