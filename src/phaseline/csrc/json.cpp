#include "json.h"

#include <emmintrin.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace phaseline {

namespace {

enum Kind : uint8_t { VALUE, QUOTE, OPENING, BLANK, OTHER };

constexpr ptrdiff_t SHORT = 20;  // characters of a number that fits a machine's word

constexpr ptrdiff_t LONGEST_NAME = 64;  // bytes of a member's name

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

// Where the string that begins at `at` has its closing quote; `end` if it has none.
const uint8_t* closing_quote(const uint8_t* at, const uint8_t* end, size_t& escapes) {
    while ((at = string_mark(at + 1, end)) != end && *at == '\\') ++escapes, at += at + 1 != end;
    return at;
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
                at = closing_quote(at, end, n.escapes);
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

// A list or object within an object. `cuts`: where it opens, commas between its elements, where it closes.
struct JsonMember {
    std::string name;
    std::vector<size_t> cuts;
    size_t elements = 1;
};

// Those of `least` bytes or more whose names have at most LONGEST_NAME, with a cut after every `least` bytes that a comma follows.
std::vector<JsonMember> long_members(const uint8_t* text, const uint8_t* end, size_t least) {
    std::vector<JsonMember> found;
    JsonMember member;
    const uint8_t *name = text, *name_end = text;
    size_t depth = 0, escapes = 0;
    for (const uint8_t* at = text; at != end; at += at != end) {
        const size_t here = size_t(at - text);
        switch (*at) {
            case '"':
                if (depth == 1) name = at + 1;
                at = closing_quote(at, end, escapes);
                if (depth == 1) name_end = at;
                break;
            case '[': case '{':
                if (++depth == 2) member = {{}, {here}};
                break;
            case ']': case '}':
                if (depth == 0) return found;  // no JSON
                if (depth-- == 2 && here + 1 - member.cuts.front() >= least && name_end - name <= LONGEST_NAME) {
                    member.name.assign(name, name_end);
                    member.cuts.push_back(here);
                    found.push_back(std::move(member));
                }
                break;
            case ',':
                if (depth != 2) break;
                ++member.elements;
                if (here - member.cuts.back() >= least) member.cuts.push_back(here);
                break;
        }
    }
    return found;
}

}  // namespace

using Text = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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
    m.def("measure_json", [](Text text) {
        nb::gil_scoped_release unlocked;
        return measure(text.data(), text.data() + text.size());
    }, "text"_a, "Any bytes will do; other threads run meanwhile.");
    m.def("long_json_members", [](Text text, size_t least) {
        std::vector<JsonMember> found;
        {
            nb::gil_scoped_release unlocked;
            found = long_members(text.data(), text.data() + text.size(), least);
        }
        nb::list members;
        for (const JsonMember& member : found)
            members.append(nb::make_tuple(nb::bytes(member.name.data(), member.name.size()), member.cuts, member.elements));
        return members;
    }, "text"_a, "least"_a, "Lists and objects of `least` bytes or more in a JSON object: the name of each as it is spelt, "
       "where it may be cut (at its opening, at a comma after each `least` bytes, at its closing), how many elements it has. "
       "Any bytes will do; other threads run meanwhile.");
}

}  // namespace phaseline
