#include "bind/torch_recipe.h"

#include <cstddef>

#include "bind/launcher.h"
#include "bind/record.h"
#include "bind/tensor_reader.h"

namespace graphene::bind {

namespace gc = graphene::call;
namespace rt = graphene::runtime;

namespace {

std::vector<gc::Extent> extents_of(const py::handle& list) {
  std::vector<gc::Extent> out;
  for (const auto& e : list) {
    const auto parts = py::cast<std::vector<std::int64_t>>(e);
    if (parts.size() < 2 || parts.size() > 3) throw py::type_error("an extent is (tensor, dimension[, multiple])");
    out.push_back({static_cast<int>(parts[0]), parts[1], parts.size() == 3 ? parts[2] : 1});
  }
  return out;
}

gc::View view_of(const py::handle& object) {
  const auto view = py::cast<py::tuple>(object);
  gc::View v{py::cast<int>(view[0]), {}};
  for (const auto& d : view[1]) {
    const auto dim = py::cast<py::tuple>(d);
    v.dims.push_back({extents_of(dim[0]), py::cast<std::vector<int>>(dim[1])});
  }
  return v;
}

gc::TensorMask mask_of(const py::int_& number) {
  gc::TensorMask mask;
  const auto bytes = py::cast<std::string>(number.attr("to_bytes")(gc::kMaxTensors / 8, "little"));
  for (std::size_t i = 0; i < gc::kMaxTensors; ++i)
    mask[i] = (static_cast<unsigned char>(bytes[i / 8]) >> i % 8 & 1) != 0;
  return mask;
}

std::shared_ptr<gc::Recipe> launch_recipe(const py::list& outputs, std::size_t returned, const py::list& launches) {
  auto r = std::make_shared<gc::Recipe>();
  r->returned = returned;
  for (const auto& o : outputs) {
    const auto pair = py::cast<py::tuple>(o);
    gc::OutputSpec spec{rt::dtype_of(py::cast<std::string>(pair[0])), {}};
    for (const auto& d : pair[1]) spec.dims.push_back(extents_of(d));
    r->outputs.push_back(std::move(spec));
  }
  for (const auto& l : launches) {
    const auto pair = py::cast<py::tuple>(l);
    if (PyObject_TypeCheck(pair[0].ptr(), launcher_type()) == 0) throw py::type_error("a recipe launches kernels");
    gc::KernelCall k{launcher_kernel(py::object(pair[0])), {}};
    for (const auto& a : pair[1]) {
      rt::ScalarArg scalar;
      if (py::isinstance<py::tuple>(a)) {
        k.args.emplace_back(view_of(a));
      } else if (py::isinstance<py::list>(a)) {
        std::vector<gc::View> views;
        for (const auto& v : a) views.push_back(view_of(v));
        k.args.emplace_back(std::move(views));
      } else if (read_scalar(a.ptr(), scalar)) {
        k.args.emplace_back(scalar);
      } else {
        throw py::type_error("an argument of a recipe's kernel is a view, a list of views or a number");
      }
    }
    r->launches.push_back(std::move(k));
  }
  return r;
}

// The other way round, in tuples and lists as launch_recipe takes them.
py::list of_extents(const std::vector<gc::Extent>& extents) {
  py::list out;
  for (const gc::Extent& e : extents) {
    py::list numbers;
    numbers.append(e.tensor);
    numbers.append(e.dim);
    if (e.multiple != 1) numbers.append(e.multiple);
    out.append(py::tuple(numbers));
  }
  return out;
}

py::tuple of_view(const gc::View& v) {
  py::list dims;
  for (const gc::ViewDim& d : v.dims) dims.append(py::make_tuple(of_extents(d.extents), py::cast(d.own)));
  return py::make_tuple(v.source, dims);
}

py::object of_argument(const std::variant<gc::View, rt::ScalarArg, std::vector<gc::View>>& a) {
  if (const auto* view = std::get_if<gc::View>(&a)) return of_view(*view);
  if (const auto* views = std::get_if<std::vector<gc::View>>(&a)) {
    py::list out;
    for (const gc::View& v : *views) out.append(of_view(v));
    return out;
  }
  const auto& s = std::get<rt::ScalarArg>(a);
  switch (s.kind) {
    case rt::ScalarArg::Kind::Float:
      return py::float_(s.f);
    case rt::ScalarArg::Kind::Bool:
      return py::bool_(s.i != 0);
    case rt::ScalarArg::Kind::UInt:
      return py::int_(s.u);
    default:
      return py::int_(s.i);
  }
}

py::list outputs_of(const gc::Recipe& r) {
  py::list outputs;
  for (const gc::OutputSpec& o : r.outputs) {
    py::list dims;
    for (const auto& d : o.dims) dims.append(of_extents(d));
    outputs.append(py::make_tuple(o.dtype.name, dims));
  }
  return outputs;
}

py::list launches_of(const gc::Recipe& r) {
  py::list launches;
  for (const gc::KernelCall& k : r.launches) {
    py::list args;
    for (const auto& a : k.args) args.append(of_argument(a));
    launches.append(py::cast(RecipeLaunch{launcher_of(*k.kernel), args}));
  }
  return launches;
}

py::object tensor_info(const rt::TensorArg& t) {
  py::list shape, strides;
  for (int d = 0; d < t.ndim; ++d) {
    shape.append(t.shape[d]);
    strides.append(t.stride(d));
  }
  // An element type that no kernel takes goes by PyTorch's number.
  const std::string dtype =
      t.code == 0xff ? "torch type " + std::to_string(t.bits) : rt::dtype_text(t.code, t.bits, t.lanes);
  return py::make_tuple(py::tuple(shape), py::tuple(strides), dtype, t.device.str(), gc::alignment_of(t.data));
}

py::tuple described(const gc::Arguments& call, const std::vector<gc::Param>& params) {
  py::list out;
  const auto scalars = gc::scalars_of(call, params);
  const auto counts = gc::tensor_counts(call, params);
  std::size_t tensor = 0, scalar = 0;
  for (std::size_t k = 0; k < params.size(); ++k) {
    const gc::Param& p = params[k];
    if (p.is_tensor()) {
      const std::size_t i = tensor++;
      out.append(call.present(i) ? tensor_info(call.tensor(i)) : py::object(py::none()));
      continue;
    }
    if (p.holds_tensors()) {
      py::list of;
      for (std::size_t n = 0; n < counts[k]; ++n) of.append(tensor_info(call.tensor(tensor++)));
      out.append(of);
      continue;
    }
    const gc::ScalarValue& v = scalars[scalar++];
    if (!v.present)
      out.append(py::none());
    else if (p.kind == gc::ParamKind::Float || p.kind == gc::ParamKind::OptionalFloat)
      out.append(v.f);
    else if (p.kind == gc::ParamKind::Bool)
      out.append(py::bool_(v.i != 0));
    else if (p.kind == gc::ParamKind::OptionalString)
      out.append(v.text);
    else if (p.kind == gc::ParamKind::IntList)
      out.append(py::tuple(py::cast(v.list)));
    else if (p.kind == gc::ParamKind::BoolList)
      out.append(py::tuple(py::cast(std::vector<bool>(v.list.begin(), v.list.end()))));
    else if (p.kind == gc::ParamKind::StringList)
      out.append(py::tuple(py::cast(v.texts)));
    else
      out.append(v.i);
  }
  return py::tuple(out);
}

}  // namespace

gc::Operator::Configure configure_by(const std::vector<gc::Param>& params, py::object function) {
  return [params, function = std::move(function)](const gc::Arguments& call) {
    const py::object r = function(*described(call, params));
    return std::shared_ptr<const gc::Recipe>(py::cast<std::shared_ptr<gc::Recipe>>(r));
  };
}

void register_recipe(py::module_& m) {
  register_record(m, "RecipeLaunch", "A kernel of a recipe, and its arguments as the constructor takes them.",
                  field("kernel", &RecipeLaunch::kernel), field("arguments", &RecipeLaunch::arguments));
  py::class_<gc::Recipe, std::shared_ptr<gc::Recipe>>(m, "Recipe", R"(What a configuration of an operator does.

`outputs`: (dtype, extents of each dimension) of the tensors it makes, `returned` of which are results. `launches`:
(kernel, arguments), an argument being a number, (source, dimensions) or a list of the latter, a dimension (extents, own dimensions). Extents
are (tensor, dimension[, multiple to round up to]) of arguments, or (-1, number); their product counts.)")
      .def(py::init(&launch_recipe), py::arg("outputs"), py::arg("returned"), py::arg("launches"))
      .def_property_readonly(
          "launches_kernels",
          [](const gc::Recipe& r) { return r.outcome == gc::Outcome::Launch && !r.launches.empty(); },
          "Whether it is one that launches something.")
      .def_readonly("reason", &gc::Recipe::reason, "Why it copies or is PyTorch's.")
      .def_property_readonly("outputs", &outputs_of, "The tensors that it makes, as the constructor takes them.")
      .def_readonly("returned", &gc::Recipe::returned, "How many of the outputs, from the first on, are results.")
      .def_property_readonly("launches", &launches_of, "A RecipeLaunch for each kernel, in order.")
      .def_static(
          "copy",
          [](const py::int_& mask, const std::string& reason) {
            auto r = std::make_shared<gc::Recipe>();
            r->outcome = gc::Outcome::Copy;
            r->copy_mask = mask_of(mask);
            r->reason = reason;
            return r;
          },
          py::arg("mask"), py::arg("reason"), "Makes the tensors of a bit mask row-major, then asks again.")
      .def_static(
          "torch",
          [](const std::string& reason) {
            auto r = std::make_shared<gc::Recipe>();
            r->outcome = gc::Outcome::Torch;
            r->reason = reason;
            return r;
          },
          py::arg("reason"), "PyTorch's own operators.");
}

}  // namespace graphene::bind
