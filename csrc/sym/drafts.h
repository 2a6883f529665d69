// Expressions that go together, in place of living as long as the process.
#pragma once

#include <cstddef>
#include <memory>

namespace graphene::sym {

class DraftTable;

class Drafts {
 public:
  Drafts();
  ~Drafts();
  Drafts(const Drafts&) = delete;
  Drafts& operator=(const Drafts&) = delete;

  // While one lives, what this thread makes is a draft. Nothing that outlives the drafts may hold it, and no
  // expression that stays can be made of it.
  class Use {
   public:
    explicit Use(Drafts& drafts);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    DraftTable* outer_;
  };

  [[nodiscard]] std::size_t bytes() const;

 private:
  std::unique_ptr<DraftTable> table_;
};

}  // namespace graphene::sym
