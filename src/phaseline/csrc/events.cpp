#include "events.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace phaseline {

namespace {

constexpr size_t HEAD = 4;  // bytes of a frame that tell its length, the lowest first

// Reads MessagePack, value by value. Once something is not what was asked for, it is not `good`, and all else is nothing.
class Reader {
  public:
    Reader(const char* at, const char* end) : at_(at), end_(end) {}

    bool good() const { return good_; }
    bool done() const { return at_ == end_; }

    size_t array() { return sized(0x90, 0x0f, 0, 0xdc, 0xdd); }

    std::string_view text() {
        const size_t size = sized(0xa0, 0x1f, 0xd9, 0xda, 0xdb);
        return take(size);
    }

    void nil() { require(number(1) == 0xc0); }

    void skip() {
        for (size_t left = 1; left && good_; --left) {
            const size_t first = number(1);
            if (first >= 0xa0 && first <= 0xbf) take(first & 0x1f);
            else if (first >= 0x90 && first <= 0x9f) left += first & 0x0f;
            else if (first <= 0x7f || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) continue;
            else if (first == 0xcc || first == 0xd0) take(1);
            else if (first == 0xcd || first == 0xd1) take(2);
            else if (first == 0xce || first == 0xd2 || first == 0xca) take(4);
            else if (first == 0xcf || first == 0xd3 || first == 0xcb) take(8);
            else if (first >= 0xd9 && first <= 0xdb) take(number(1 << (first - 0xd9)));
            else if (first == 0xdc || first == 0xdd) left += number(2 << (first - 0xdc));
            else require(false);  // maps and the like, which no report has
        }
    }

    // A count of at most a byte.
    size_t small() {
        const size_t first = number(1);
        require(first <= 0x7f || first == 0xcc);
        return first == 0xcc ? number(1) : first;
    }

    void require(bool holds) {
        if (!holds) good_ = false, at_ = end_;
    }

  private:
    std::string_view take(size_t bytes) {
        require(size_t(end_ - at_) >= bytes);
        if (!good_) return {};
        return {(at_ += bytes) - bytes, bytes};
    }

    size_t number(int bytes) {
        size_t value = 0;
        for (const char byte : take(size_t(bytes))) value = value << 8 | uint8_t(byte);
        return value;
    }

    // A size in the low bits of its head, or in one (if there is such a head), two or four bytes after it.
    size_t sized(size_t small, size_t bits, size_t one, size_t two, size_t four) {
        const size_t first = number(1);
        if ((first & ~bits) == small) return first & bits;
        if (first == two) return number(2);
        if (first == four) return number(4);
        require(one && first == one);
        return number(1);
    }

    const char *at_, *end_;
    bool good_ = true;
};

// As JSON writes a text; bytes beyond ASCII stay.
void spell(std::string_view text, std::string& out) {
    static constexpr char HEX[] = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
        const size_t at = std::string_view("\"\\\b\f\n\r\t").find(c);
        if (at != std::string_view::npos) out += '\\', out += "\"\\bfnrt"[at];
        else if (uint8_t(c) < 0x20) out += "\\u00", out += HEX[c >> 4], out += HEX[c & 15];
        else out += c;
    }
    out += '"';
}

std::string_view bytes_of(nb::handle object) {
    const auto bytes = nb::cast<nb::bytes>(object);
    return {bytes.c_str(), bytes.size()};
}

class PlainEvents {
  public:
    PlainEvents(std::string kind, const std::vector<std::string>& report, const std::vector<std::string>& delta)
        : kind_(std::move(kind)), report_fields_(report.size()), delta_fields_(delta.size()),
          prefill_(field(report, "prefill")), deltas_(field(report, "deltas")), progress_(field(report, "progress")),
          failed_(field(report, "failed")), request_(field(delta, "request_id")), index_(field(delta, "index")),
          text_(field(delta, "text")), finish_(field(delta, "finish_reason")),
          prompt_logprobs_(field(delta, "prompt_logprobs")), logprobs_(field(delta, "logprobs")) {}

    nb::object of(nb::bytes frame, nb::dict streams) const {
        nb::list events;
        return read(bytes_of(frame), streams, events) ? nb::object(events) : nb::none();
    }

  private:
    static size_t field(const std::vector<std::string>& names, const char* name) {
        const auto at = std::find(names.begin(), names.end(), name);
        if (at == names.end()) throw nb::value_error((std::string("no field is called ") + name).c_str());
        return size_t(at - names.begin());
    }

    bool read(std::string_view frame, const nb::dict& streams, nb::list& events) const {
        size_t length = 0;
        for (size_t i = 0; i < HEAD && i < frame.size(); ++i) length |= size_t(uint8_t(frame[i])) << 8 * i;
        if (length + HEAD != frame.size()) return false;
        Reader in(frame.data() + HEAD, frame.data() + frame.size());
        in.require(in.array() == report_fields_ + 1);
        in.require(in.text() == kind_);
        for (size_t field = 0; field < report_fields_ && in.good(); ++field) {
            if (field == prefill_ || field == progress_ || field == failed_) {
                in.require(!in.array());
            } else if (field == deltas_) {
                const size_t deltas = in.array();
                in.require(deltas);
                for (size_t i = 0; i < deltas && in.good(); ++i)
                    if (!add_event(in, streams, events)) return false;
            } else {
                in.skip();
            }
        }
        return in.good() && in.done();
    }

    bool add_event(Reader& in, const nb::dict& streams, nb::list& events) const {
        std::string_view request, text;
        size_t index = 0;
        in.require(in.array() == delta_fields_);
        for (size_t field = 0; field < delta_fields_; ++field) {
            if (field == request_) request = in.text();
            else if (field == index_) index = in.small();
            else if (field == text_) text = in.text();
            else if (field == finish_ || field == prompt_logprobs_) in.nil();
            else if (field == logprobs_) in.require(!in.array());
            else in.skip();
        }
        if (!in.good()) return false;
        const nb::object name = nb::steal(PyUnicode_DecodeUTF8(request.data(), Py_ssize_t(request.size()), "replace"));
        if (!streams.contains(name)) return false;
        const auto ways = nb::cast<nb::dict>(streams[name].attr(ways_));
        const nb::int_ number(index);
        if (!ways.contains(number)) return false;
        const auto [taker, write, head, tail] = fields_of(ways[number]);
        if (!nb::cast<bool>(taker.attr(open_))) return false;
        if (text.empty()) return true;
        std::string event(bytes_of(head));
        spell(text, event);
        event += bytes_of(tail);
        events.append(nb::make_tuple(taker, write, nb::bytes(event.data(), event.size())));
        return true;
    }

    // Of a Way, in its order.
    static std::array<nb::object, 4> fields_of(nb::handle way) {
        const auto fields = nb::cast<nb::tuple>(way);
        if (fields.size() != 4) throw nb::value_error("a way has four fields");
        return {fields[0], fields[1], fields[2], fields[3]};
    }

    nb::str ways_ = nb::steal<nb::str>(PyUnicode_InternFromString("ways"));
    nb::str open_ = nb::steal<nb::str>(PyUnicode_InternFromString("open"));
    std::string kind_;
    size_t report_fields_, delta_fields_;
    size_t prefill_, deltas_, progress_, failed_;  // which field of a report
    size_t request_, index_, text_, finish_, prompt_logprobs_, logprobs_;  // which field of a delta
};

}  // namespace

void bind_events(nb::module_& m) {
    nb::class_<PlainEvents>(m, "PlainEvents", "Spells what a report brings where that is text alone.")
        .def(nb::init<std::string, const std::vector<std::string>&, const std::vector<std::string>&>(), "kind"_a,
             "report"_a, "delta"_a, "How reports are called, and the names of their fields and of a delta's, in order.")
        .def("of", &PlainEvents::of, "frame"_a, "streams"_a,
             "(taker, write, event) of every text in a frame; None of any other frame, or where a stream has no way that "
             "is open.");
}

}  // namespace phaseline
