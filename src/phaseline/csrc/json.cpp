#include "json.h"

#include <emmintrin.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace nb = nanobind;
using namespace nb::literals;

namespace phaseline {

namespace {

enum Kind : uint8_t { VALUE, QUOTE, OPENING, BLANK, OTHER };

constexpr ptrdiff_t SHORT = 20;  // characters of a number that fits a machine's word

constexpr std::array<Kind, 256> KINDS = [] {
    std::array<Kind, 256> kinds{};
    for (const char c : {']', '}', ',', ':'}) kinds[uint8_t(c)] = OTHER;
    for (const char c : {' ', '\t', '\n', '\r'}) kinds[uint8_t(c)] = BLANK;
    kinds['['] = kinds['{'] = OPENING, kinds['"'] = QUOTE;
    return kinds;
}();

// The first quote or backslash from `at` on; `end` if there is none.
const uint8_t* string_mark(const uint8_t* at, const uint8_t* end) {
    const __m128i quotes = _mm_set1_epi8('"'), backslashes = _mm_set1_epi8('\\');
    for (; end - at >= 16; at += 16) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m128i found = _mm_or_si128(_mm_cmpeq_epi8(bytes, quotes), _mm_cmpeq_epi8(bytes, backslashes));
        if (const int mask = _mm_movemask_epi8(found)) return at + std::countr_zero(unsigned(mask));
    }
    return std::find_if(at, end, [](uint8_t c) { return c == '"' || c == '\\'; });
}

struct JsonSize {
    size_t openings = 0;  // of lists and objects
    size_t strings = 0, escapes = 0, longest_string = 0;  // in bytes
    size_t values = 0, long_values = 0, longest_value = 0;  // numbers, true, false, null; or what is no JSON
    size_t blanks = 0;  // between all of these
    size_t beyond_ascii = 0;  // bytes, anywhere
};

JsonSize measure(const uint8_t* at, const uint8_t* end) {
    JsonSize n;
    n.beyond_ascii = size_t(std::count_if(at, end, [](uint8_t c) { return c >= 0x80; }));
    while (at != end) {
        const uint8_t* start = at;
        switch (KINDS[*at]) {
            case QUOTE:
                while ((at = string_mark(at + 1, end)) != end && *at == '\\') ++n.escapes, at += at + 1 != end;
                ++n.strings, n.longest_string = std::max(n.longest_string, size_t(at - start) - 1);
                at += at != end;
                break;
            case VALUE:
                while (at != end && KINDS[*at] == VALUE) ++at;
                ++n.values, n.long_values += at - start > SHORT;
                n.longest_value = std::max(n.longest_value, size_t(at - start));
                break;
            case OPENING: ++n.openings, ++at; break;
            case BLANK: ++n.blanks, ++at; break;
            case OTHER: ++at; break;
        }
    }
    return n;
}

}  // namespace

void bind_json(nb::module_& m) {
    nb::class_<JsonSize>(m, "JsonSize", "How much of what is in a JSON text.")
        .def_ro("openings", &JsonSize::openings)
        .def_ro("strings", &JsonSize::strings)
        .def_ro("escapes", &JsonSize::escapes)
        .def_ro("longest_string", &JsonSize::longest_string)
        .def_ro("values", &JsonSize::values)
        .def_ro("long_values", &JsonSize::long_values)
        .def_ro("longest_value", &JsonSize::longest_value)
        .def_ro("blanks", &JsonSize::blanks)
        .def_ro("beyond_ascii", &JsonSize::beyond_ascii);
    m.def("measure_json", [](nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> text) {
        nb::gil_scoped_release unlocked;
        return measure(text.data(), text.data() + text.size());
    }, "text"_a, "Any bytes will do; other threads run meanwhile.");
}

}  // namespace phaseline
