#include "call/form.h"

namespace graphene::call {

namespace rt = graphene::runtime;

Step::Step(std::shared_ptr<const rt::LaunchManifest> m, const std::vector<rt::ArgValue>& values,
           const std::vector<int>& sources)
    : manifest(std::move(m)), tensors(sources.begin(), sources.end()) {
  for (const rt::ArgValue& v : values)
    if (!v.tensors.empty()) lengths.push_back(v.tensors.size());
  lists = lengths.size() != tensors.size();
}

void Step::launch(const Arguments& call, void* const* made, rt::CuStream stream) const {
  if (prepared->empty()) return;
  const std::size_t inputs = call.tensor_count();
  const auto address = [&](std::size_t i) { return i < inputs ? &call.tensor(i).data : made + (i - inputs); };
  const auto* const words = numbers ? numbers->data() : call.words();
  const std::size_t count = numbers ? numbers->size() : call.word_count();
  Room<void*, 40> params;
  params.reserve(lengths.size() + count + prepared->own_params());
  Room<void*, 8> items;  // of lists, one after the other
  void** next = params.data();
  if (!lists) {
    for (const std::size_t s : tensors) *next++ = const_cast<void**>(address(s));
  } else {
    items.reserve(tensors.size());
    const std::size_t* from = tensors.data();
    for (const std::size_t length : lengths) {
      *next++ = items.data() + items.size();
      for (std::size_t k = 0; k < length; ++k) items.push(*address(*from++));
    }
  }
  for (std::size_t i = 0; i < count; ++i) *next++ = const_cast<std::int64_t*>(words + i);
  const int r = prepared->launch(rt::driver(), stream, params.data(), lengths.size() + count);
  if (r != rt::kCudaSuccess) throw Error(rt::driver_problem(r, manifest->kernel_name, "the launch"));
}

Reach::Reach(const Arguments& call, const std::vector<Param>& params) {
  const std::size_t n = call.tensor_count();
  const auto written = written_tensors(call, params);
  for (std::size_t i = 0; i < n; ++i) spans_.push_back(call.present(i) ? rt::byte_span(call.tensor(i)) : rt::Span{});
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = i + 1; k < n; ++k)
      if ((written[i] || written[k]) && spans_[i].first != spans_[i].last && spans_[k].first != spans_[k].last)
        pairs_.emplace_back(i, k);
}

}  // namespace graphene::call
