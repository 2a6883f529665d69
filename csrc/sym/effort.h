#pragma once

namespace graphene::sym {

// While one lives, this thread decides comparisons by the bounds of both sides alone and looks for no proofs: for
// expressions that are evaluated soon. Nothing of it is remembered.
class BoundsAlone {
 public:
  BoundsAlone() : outer_(active_) { active_ = true; }
  ~BoundsAlone() { active_ = outer_; }
  BoundsAlone(const BoundsAlone&) = delete;
  BoundsAlone& operator=(const BoundsAlone&) = delete;

  static bool active() { return active_; }

 private:
  inline static thread_local bool active_ = false;
  bool outer_;
};

}  // namespace graphene::sym
