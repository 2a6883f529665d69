#include "call/launcher.h"

#include <numeric>

namespace graphene::call {

namespace rt = graphene::runtime;

std::shared_ptr<const rt::LaunchManifest> Launcher::manifest(const std::string& arch) {
  auto m = kernel_.manifest(arch);
  if (!declared_) {
    params_ = params_of(*m);
    declared_ = m;
  }
  return m;
}

bool Launcher::launch_known(const Arguments& call, Caller& caller) {
  const Memo<Form>::Hold hold(forms_);
  const Form* const form = forms_.find(call);
  if (form == nullptr || !form->reach.apart(call)) return false;
  const rt::CuStream stream = caller.stream(form->device);
  caller.announce_written();
  form->steps.front().launch(call, nullptr, stream);
  return true;
}

void Launcher::launch_checked(const std::shared_ptr<const rt::LaunchManifest>& m, int device, const Arguments& call,
                              const std::vector<rt::ArgValue>& values, Caller& caller) {
  ++misses_;
  rt::BoundCall bound = rt::bind_args(*m, values, rt::device(device).limits);
  caller.announce_written();
  const rt::CuStream stream = caller.stream(device);
  const Memo<Form>::Hold hold(forms_);
  const Form* form = forms_.find(call);
  if (form == nullptr) {
    auto made = std::make_unique<Form>();
    made->device = device;
    made->reach = Reach(call, params_);
    std::vector<int> sources(call.tensor_count());
    std::iota(sources.begin(), sources.end(), 0);
    Step step(m, values, sources);
    const bool empty = bound.empty();
    step.prepared = std::make_shared<rt::PreparedLaunch>(*m, std::move(bound));
    if (!empty) step.prepared->attach(kernel_.function(*m, device, stream), *m);
    made->steps.push_back(std::move(step));
    form = forms_.keep(call, std::move(made));
  }
  form->steps.front().launch(call, nullptr, stream);
}

}  // namespace graphene::call
