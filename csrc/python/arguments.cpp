#include "arguments.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace flashcute::python {

namespace {

constexpr const char* kNames[kArgCount] = {
    "q",         "k",      "v",          "out",          "scale",        "causal",       "alignment",
    "window",    "mask",   "block_mask", "bias",         "softcap",      "alibi_slopes", "sinks",
    "dropout_p", "seed",   "offset",     "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
    "seqused_k", "layout", "return_lse", "return_probs", "backend",      "checked",      "workspace",
    "stream",    "lse",    "probs"};

// Names that other libraries have and a later release may bring: refused with what they are.
struct Refused {
  const char* name;
  const char* what;
};
constexpr Refused kRefused[] = {
    {"block_table", "paged caches"},   {"page_table", "paged caches"},    {"page_size", "paged caches"},
    {"k_new", "appending to a cache"}, {"v_new", "appending to a cache"}, {"cos", "rotary embedding"},
    {"sin", "rotary embedding"},       {"num_splits", "split-KV"},        {"seqused_q", "seqused_q"},
    {"q_descale", "float8"},           {"k_descale", "float8"},           {"v_descale", "float8"},
};

std::string_view utf8(PyObject* unicode) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(unicode, &size);
  if (!data) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

struct Interned {
  PyObject* names[kArgCount];
  Interned() {
    for (int i = 0; i < kArgCount; ++i) names[i] = PyUnicode_InternFromString(kNames[i]);
  }
};

PyObject* const* interned_names() {
  static const Interned* interned = new Interned;  // never freed: outlives the interpreter's own teardown
  return interned->names;
}

[[noreturn]] void unknown_keyword(const char* function, std::string_view name) {
  for (const Refused& refused : kRefused) {
    if (name == refused.name) {
      throw SignatureError(text("flashcute.", function, '(', name, "): not in this release (", refused.what, ")"));
    }
  }
  throw SignatureError(text("flashcute.", function, "(): unexpected keyword argument '", name, "'"));
}

int find_keyword(const char* function, uint32_t allowed, PyObject* keyword, int expected) {
  PyObject* const* names = interned_names();
  // Callers name their arguments in the documented order more often than not.
  for (int i = expected; i < kArgCount; ++i) {
    if (names[i] == keyword) return i;
  }
  for (int i = 0; i < expected; ++i) {
    if (names[i] == keyword) return i;
  }
  const std::string_view name = utf8(keyword);
  for (int i = 0; i < kArgCount; ++i) {
    if (name == kNames[i] && (allowed >> i & 1u)) return i;
  }
  unknown_keyword(function, name);
}

float parse_float(Where where, PyObject* value) {
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred()) {
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a number, given %", value);
  }
  const float rounded = static_cast<float>(number);
  if (rounded == 0.0f && number != 0.0) {  // 0 means "off" here and there, which a tiny number does not
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected 0 or a number of float32's range, given ", str_of(value));
  }
  return rounded;
}

bool parse_bool(Where where, PyObject* value) {
  if (value == Py_True) return true;
  if (value == Py_False) return false;
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(value)));
  const bool numpy_bool = std::strncmp(type_name(value).c_str(), "bool", 4) == 0;  // numpy.bool, numpy.bool_
  if (!PyLong_Check(value) && !numpy_bool) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected True or False, given ", type_name(value));
  }
  const int truth = PyObject_IsTrue(value);
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

// Saturates: huge bounds mean unbounded, not an overflow.
int64_t parse_int(Where where, PyObject* value) {
  nb::object index = nb::steal(PyLong_CheckExact(value) ? Py_NewRef(value) : PyNumber_Index(value));
  if (!index.is_valid()) {
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "expected an integer, given %", value);
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) return overflow > 0 ? INT64_MAX : INT64_MIN;
  return number;
}

template <size_t N>
int32_t parse_choice(Where where, PyObject* value, const char* const (&choices)[N]) {
  if (PyUnicode_Check(value)) {
    const std::string_view name = utf8(value);
    for (size_t i = 0; i < N; ++i) {
      if (name == choices[i]) return static_cast<int32_t>(i);
    }
  }
  std::string expected;
  for (size_t i = 0; i < N; ++i) expected += text(i == 0 ? "" : i + 1 == N ? " or " : ", ", '\'', choices[i], '\'');
  fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected ", expected, ", given ", repr_of(value));
}

void parse_window(Where where, PyObject* value, Options& options) {
  const nb::object pair =
      nb::steal(PyTuple_Check(value) || PyList_Check(value) ? PySequence_Tuple(value) : Py_NewRef(Py_None));
  if (!pair.is_valid()) throw nb::python_error();
  if (pair.is_none() || PyTuple_Size(pair.ptr()) != 2) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a pair (left, right), given ", repr_of(value));
  }
  options.window_left = parse_int(where, PyTuple_GetItem(pair.ptr(), 0));
  options.window_right = parse_int(where, PyTuple_GetItem(pair.ptr(), 1));
}

int64_t parse_length(Where where, PyObject* value) {
  const int64_t length = parse_int(where, value);
  if (length < 0) fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected a length of at least 0, given ", length);
  return length;
}

bool checked_by_environment(const char* function) {
  const char* value = std::getenv("FLASHCUTE_CHECKED");
  if (!value || !*value || std::strcmp(value, "0") == 0) return false;
  if (std::strcmp(value, "1") == 0) return true;
  fail(FLASHCUTE_STATUS_BAD_PARAM, {function, "FLASHCUTE_CHECKED"}, "expected 0 or 1, given \"", value, '"');
}

}  // namespace

const char* name_of(Arg arg) {
  return kNames[arg];
}

void parse_arguments(const char* function, uint32_t allowed, PyObject* const* values, Py_ssize_t positional,
                     PyObject* keyword_names, Arguments& out) {
  out.fill(nullptr);
  uint32_t seen = 0;
  if (positional > 3) {
    throw SignatureError(text("flashcute.", function, "(): expected 3 positional arguments (q, k, v), given ",
                              positional, "; the others are given by keyword"));
  }
  for (Py_ssize_t i = 0; i < positional; ++i) {
    out[i] = values[i];
    seen |= 1u << i;
  }
  const Py_ssize_t keywords = keyword_names ? PyTuple_Size(keyword_names) : 0;
  int expected = static_cast<int>(positional);
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* keyword = PyTuple_GetItem(keyword_names, i);
    const int arg = find_keyword(function, allowed, keyword, expected);
    if (!(allowed >> arg & 1u)) unknown_keyword(function, kNames[arg]);
    if (seen >> arg & 1u) {
      throw SignatureError(text("flashcute.", function, '(', kNames[arg], "): given twice"));
    }
    seen |= 1u << arg;
    PyObject* value = values[positional + i];
    out[arg] = value == Py_None ? nullptr : value;
    expected = arg + 1;
  }
  for (int i = kArgQ; i <= kArgV; ++i) {
    if (!(seen >> i & 1u)) {
      throw SignatureError(text("flashcute.", function, "(): missing argument '", kNames[i], "'"));
    }
    if (!out[i]) out[i] = Py_None;  // an explicit None is not a tensor, and says so
  }
}

uint64_t parse_u64(Where where, PyObject* value) {
  const nb::object index = nb::steal(PyNumber_Index(value));
  if (!index.is_valid()) {
    fail_from_python(FLASHCUTE_STATUS_BAD_PARAM, where, "expected an integer, given %", value);
  }
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    fail(FLASHCUTE_STATUS_BAD_PARAM, where, "expected an integer from 0 to 2**64 - 1, given ", str_of(index));
  }
  return number;
}

Layout parse_layout(Where where, PyObject* value) {
  return static_cast<Layout>(parse_choice(where, value, kLayouts));
}

Options parse_options(const char* function, const Arguments& arguments) {
  Options options;
  const auto where = [&](Arg arg) { return Where{function, kNames[arg]}; };
  const auto given = [&](Arg arg) { return arguments[arg]; };

  if (PyObject* value = given(kArgScale)) {
    options.has_scale = true;
    options.scale = parse_float(where(kArgScale), value);
  }
  if (PyObject* value = given(kArgCausal)) options.causal = parse_bool(where(kArgCausal), value);
  if (PyObject* value = given(kArgAlignment)) {
    options.alignment = parse_choice(where(kArgAlignment), value, kAlignments);
  }
  if (PyObject* value = given(kArgWindow)) parse_window(where(kArgWindow), value, options);
  if (PyObject* value = given(kArgSoftcap)) options.softcap = parse_float(where(kArgSoftcap), value);
  if (PyObject* value = given(kArgDropoutP)) options.dropout_p = parse_float(where(kArgDropoutP), value);
  if (PyObject* value = given(kArgMaxSeqlenQ)) options.max_seqlen_q = parse_length(where(kArgMaxSeqlenQ), value);
  if (PyObject* value = given(kArgMaxSeqlenK)) options.max_seqlen_k = parse_length(where(kArgMaxSeqlenK), value);
  if (PyObject* value = given(kArgLayout)) options.layout = parse_layout(where(kArgLayout), value);
  if (PyObject* value = given(kArgReturnLse)) options.return_lse = parse_bool(where(kArgReturnLse), value);
  if (PyObject* value = given(kArgReturnProbs)) options.return_probs = parse_bool(where(kArgReturnProbs), value);
  if (PyObject* value = given(kArgBackend)) options.backend = parse_choice(where(kArgBackend), value, kBackends);
  options.checked =
      given(kArgChecked) ? parse_bool(where(kArgChecked), given(kArgChecked)) : checked_by_environment(function);

  options.packed = given(kArgCuSeqlensQ) || given(kArgCuSeqlensK);
  if (!given(kArgLayout) && options.packed) options.layout = Layout::kHsd;
  const bool packed_layout = options.layout == Layout::kHsd || options.layout == Layout::kShd;
  if (options.packed && !packed_layout) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where(kArgLayout), "expected 'hsd' or 'shd' with cu_seqlens, given '",
         options.rows_first() ? "bshd'" : "bhsd'");
  }
  if (!options.packed && packed_layout) {
    fail(FLASHCUTE_STATUS_BAD_PARAM, where(kArgLayout),
         "expected 'bhsd' or 'bshd' (which serve three axes too) without cu_seqlens, given '",
         options.rows_first() ? "shd'" : "hsd'");
  }
  return options;
}

}  // namespace flashcute::python
