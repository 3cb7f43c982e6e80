// The only door between Python and the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>

#include "ceilings.h"
#include "events.h"
#include "json.h"
#include "ops.h"
#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace phaseline;

namespace {

template <class T, int N> using View = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

Matrix* pack(const std::string& format, View<const uint8_t, 2> raw, int cols, Team& team, Store& store,
             std::optional<View<const uint8_t, 2>> codebook) {
    const Format* f = find_format(format);
    if (!f) throw nb::value_error(("no kernel reads tensor type " + format).c_str());
    if (cols <= 0 || cols % f->block || size_t(cols / f->block) * size_t(f->bytes) != raw.shape(1))
        throw nb::value_error("a row's bytes do not match its columns");
    if (f->codebook != (codebook ? codebook->size() : 0)) throw nb::value_error("the codebook is not that of the format");
    nb::gil_scoped_release unlocked;
    return new Matrix(*f, raw.data(), raw.shape(1), int(raw.shape(0)), cols, codebook ? codebook->data() : nullptr, team,
                      store);
}

size_t packed_bytes(const std::string& format, size_t rows, int cols) {
    const Format* f = find_format(format);
    if (!f || cols < 0 || cols % f->block) throw nb::value_error("no kernel reads rows of that type and size");
    return (rows + PANEL - 1) / PANEL * panel_bytes(*f, cols);
}

// Checks all that the kernels will trust, then starts the step.

void begin(Plan& plan, std::vector<int32_t> tokens, const std::vector<std::array<int32_t, 4>>& segments,
           std::vector<int32_t> wanted, View<const int32_t, 3> pages, View<float, 2> logits, int vocab) {
    const auto refuse = [](const char* why) { throw nb::value_error(why); };
    StepData step{std::move(tokens), {}, std::move(wanted), pages.data(), pages.shape(1), pages.shape(2)};
    if (pages.shape(0) != plan.groups().size()) refuse("the page table needs one matrix per state group");
    if (step.rows() > plan.max_rows()) refuse("the step has more rows than the plan was made for");
    if (step.wanted_rows() > plan.max_wanted()) refuse("the step wants more rows than the plan was made for");
    if (logits.shape(0) != step.wanted.size() || logits.shape(1) != size_t(vocab)) refuse("logits have the wrong shape");
    for (int32_t token : step.tokens)
        if (token < 0 || token >= vocab) refuse("a token is outside the vocabulary");
    for (int32_t row : step.wanted)
        if (row < 0 || row >= step.rows()) refuse("a wanted row is outside the step");
    int next = 0;
    for (const auto& [slot, start, first, rows] : segments) {
        const Segment s = step.segments.emplace_back(Segment{slot, start, first, rows});
        if (s.first != next || s.rows <= 0 || s.start < 0) refuse("segments must tile the rows in order");
        next += s.rows;
        if (s.slot < 0 || size_t(s.slot) >= step.slots) refuse("a segment's slot is outside the page table");
        const long used = (long(s.start) + s.rows + PAGE - 1) / PAGE;
        for (size_t g = 0; g < plan.groups().size(); g++) {
            const Plan::Group& group = plan.groups()[g];
            const int32_t* list = step.pages_of(int(g), s.slot);
            if (group.recurrent) {
                if (step.max_pages < 2) refuse("a recurrent state needs a page to read and a page to write");
                if (list[0] >= group.pages || list[1] < 0 || list[1] >= group.pages || list[0] == list[1])
                    refuse("a segment's pages of recurrent state are not two of its group's");
                continue;
            }
            if (used > long(step.max_pages)) refuse("a segment is longer than its page list");
            for (long p = group.first_page(s.start); p < used; p++)
                if (list[p] < 0 || list[p] >= group.pages) refuse("a segment's page list does not cover it");
        }
    }
    if (next != step.rows()) refuse("segments must tile the rows in order");
    plan.begin(std::move(step), logits.data());
}

bool run(Plan& plan, int a, int b, bool by_row, bool experts_by_row, std::optional<View<double, 1>> seconds) {
    if (a < 0 || b > plan.ops() || a > b) throw nb::value_error("no such operations");
    if (seconds && seconds->shape(0) != size_t(plan.ops())) throw nb::value_error("one time per operation is needed");
    double* times = seconds ? seconds->data() : nullptr;
    bool done;
    {
        nb::gil_scoped_release unlocked;
        done = plan.run(a, b, by_row, experts_by_row, [] {
            nb::gil_scoped_acquire locked;
            return PyErr_CheckSignals() != 0;  // does nothing but on the main thread
        }, times);
    }
    if (!done) throw nb::python_error();
    return done;
}

template <class Array> KvLayer kv_layer(Array& keys, Array& values, int layer, int kv_heads, int head_dim) {
    const size_t bytes = keys.itemsize();
    const size_t page_bytes = size_t(keys.stride(0)) * bytes;  // strides count elements
    const size_t at = size_t(layer) * size_t(keys.stride(1)) * bytes;
    const KvType type = bytes == 2 ? KvType::BF16 : KvType::F32;
    const int padded = (head_dim + PANEL - 1) / PANEL * PANEL;
    if (size_t(layer) >= keys.shape(1) || keys.shape(2) != PAGE || keys.shape(3) != size_t(kv_heads) ||
        keys.shape(4) != size_t(padded) || (bytes != 2 && bytes != 4))
        throw nb::value_error("the state's arrays do not have the shape that the kernels want");
    return {static_cast<uint8_t*>(keys.data()) + at,
            static_cast<uint8_t*>(values.data()) + at, kv_heads, head_dim, padded, type, page_bytes};
}

LatentLayer latent_layer(nb::ndarray<nb::ndim<4>, nb::c_contig>& rows, int layer, int rank, int width) {
    const size_t bytes = rows.itemsize();
    const LatentLayer kv{static_cast<uint8_t*>(rows.data()) + size_t(layer) * size_t(rows.stride(1)) * bytes, rank, width,
                         bytes == 2 ? KvType::BF16 : KvType::F32, size_t(rows.stride(0)) * bytes};
    if (size_t(layer) >= rows.shape(1) || rows.shape(2) != PAGE || rows.shape(3) != size_t(kv.padded_width()) ||
        (bytes != 2 && bytes != 4))
        throw nb::value_error("the state's array does not have the shape that the kernels want");
    return kv;
}

template <int N> using Memory = nb::ndarray<float, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

DeltaLayer delta_layer(Memory<5>& state, Memory<4>& window, int layer, int heads, int dim, int taps) {
    const DeltaLayer of{state.data() + size_t(layer) * size_t(state.stride(1)),
                        window.data() + size_t(layer) * size_t(window.stride(1)), size_t(state.stride(0)),
                        size_t(window.stride(0)), window.shape(3), heads, dim, taps};
    if (size_t(layer) >= state.shape(1) || size_t(layer) >= window.shape(1) || state.shape(2) != size_t(heads) ||
        state.shape(3) != size_t(dim) || state.shape(4) != size_t(of.strips() * PANEL) ||
        window.shape(2) != size_t(taps - 1) || window.shape(3) < 3 * size_t(heads * dim))
        throw nb::value_error("the state's arrays do not have the shape that the kernels want");
    if (reinterpret_cast<uintptr_t>(state.data()) % 64) throw nb::value_error("a state must begin on a cache line");
    return of;
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("PAGE") = PAGE;
    m.attr("MAX_TAPS") = MAX_TAPS;
    m.def("levels", [] {
        std::vector<std::string> names;
        for (const char* name : LEVELS)
            if (level_runs_here(name)) names.emplace_back(name);
        return names;
    }, "Instruction-set levels that run here, plainest first.");
    m.def("trust_tiles", trust_tiles, "The level amx runs wherever AVX-512 does, since something executes its instructions: for tests.");
    m.def("known_levels", [] { return std::vector<std::string>(std::begin(LEVELS), std::end(LEVELS)); });

    nb::class_<Team>(m, "Team", "Threads, created once and shared by whatever runs one after the other.")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("size", &Team::size)
        .def_prop_ro("active", &Team::active, "Threads that took part in the last run.");
    nb::class_<Crew>(m, "Crew", "How many threads of a team are worth using.")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("size", &Crew::size)
        .def("note", &Crew::note, "wall"_a, "lost"_a, "A job's seconds, and thread-seconds in which others ran.");

    nb::class_<Matrix>(m, "Matrix", "A weight packed into panels.")
        .def_prop_ro("nbytes", &Matrix::nbytes)
        .def_prop_ro("shape", [](const Matrix& w) { return nb::make_tuple(w.rows, w.cols); })
        .def("row", [](const Matrix& w, int row, View<float, 1> out) {
            if (row < 0 || row >= w.rows || out.shape(0) != size_t(w.cols)) throw nb::index_error("no such row");
            w.unpack_row(row, out.data());
        }, "row"_a, "out"_a);
    nb::class_<Store>(m, "Store", "The memory of packed weights.").def(nb::init<>());
    m.def("packed_bytes", &packed_bytes, "format"_a, "rows"_a, "cols"_a);
    m.def("pack", &pack, nb::rv_policy::take_ownership, nb::keep_alive<0, 5>(), "format"_a, "raw"_a, "cols"_a, "team"_a,
          "store"_a, "codebook"_a = nb::none());

    nb::class_<NormWeights>(m, "Norm", "What a norm multiplies by and adds; without a bias the mean stays.")
        .def("__init__", [](NormWeights* self, std::vector<float> weight, std::vector<float> bias, float eps) {
            new (self) NormWeights{std::move(weight), std::move(bias), eps};
        }, "weight"_a, "bias"_a, "eps"_a);
    nb::enum_<Act>(m, "Act").value("NONE", Act::NONE).value("SILU", Act::SILU).value("GELU", Act::GELU).value("SITU", Act::SITU);

    nb::class_<Plan>(m, "Plan", "A program made native.")
        .def("__init__", [](Plan* self, Team& team, const std::string& level, int max_rows, int max_wanted) {
            new (self) Plan(team, kernels_here(level.c_str()), max_rows, max_wanted);
        }, "team"_a, "level"_a, "max_rows"_a, "max_wanted"_a, nb::keep_alive<1, 2>())
        .def_prop_ro("level", [](const Plan& p) { return std::string(p.kernels().name); })
        .def("add_group", [](Plan& p, int pages, std::optional<int> window, bool recurrent) {
            if (window && *window < 1) throw nb::value_error("a window holds at least its own position");
            p.add_group({pages, window.value_or(EVERYTHING), recurrent});
        }, "pages"_a, "window"_a = nb::none(), "recurrent"_a = false)
        .def("add_value", &Plan::add_value, "width"_a, "wanted"_a, "column"_a)
        .def("add_output", &Plan::add_output, "width"_a)
        .def("add_embed", [](Plan& p, const Matrix& table, int out, float scale, const Matrix* positions, int layer) {
            p.add(make_embed({&table, &p.value(out), scale, positions}), layer);
        }, "table"_a, "out"_a, "scale"_a, "positions"_a.none(), "layer"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 5>())
        .def("add_select", [](Plan& p, int x, int out, int layer) {
            p.add(make_select(p.value(x), p.value(out)), layer);
        }, "x"_a, "out"_a, "layer"_a)
        .def("add_normalise", [](Plan& p, int x, int out, const NormWeights& norm, int residual, int layer) {
            p.add(make_normalise(p.value(x), p.value(out), norm, residual < 0 ? nullptr : &p.value(residual)), layer);
        }, "x"_a, "out"_a, "norm"_a, "residual"_a, "layer"_a)
        .def("add_gate", [](Plan& p, int x, int gate, int out, int layer) {
            p.add(make_gate(p.value(x), p.value(gate), p.value(out)), layer);
        }, "x"_a, "gate"_a, "out"_a, "layer"_a)
        .def("add_residual_mix", [](Plan& p, std::vector<int> rows, int out, std::vector<float> weight, float eps, int layer) {
            MixSpec s{{}, &p.value(out), std::move(weight), eps};
            for (int row : rows) s.rows.push_back(&p.value(row));
            if (rows.empty() || rows.size() > MAX_MIX) throw nb::value_error("a mix averages one to nine rows");
            p.add(make_residual_mix(std::move(s)), layer);
        }, "rows"_a, "out"_a, "weight"_a, "eps"_a, "layer"_a)
        .def("add_rope", [](Plan& p, int x, int out, int head_dim, std::vector<double> frequencies, double magnitude,
                            bool halves, int layer) {
            const int dims = 2 * int(frequencies.size());
            const size_t at = p.add_rotation(std::move(frequencies), magnitude);
            p.add(make_rope({&p.value(x), &p.value(out), head_dim, dims, halves, at}), layer);
        }, "x"_a, "out"_a, "head_dim"_a, "frequencies"_a, "magnitude"_a, "halves"_a, "layer"_a)
        .def("add_linear", [](Plan& p, int x, std::vector<const Matrix*> weights, std::vector<int> outs, const NormWeights* norm,
                              std::vector<std::vector<float>> biases, Act gate, Act act, int residual, int layer) {
            LinearSpec s{.x = &p.value(x), .norm = norm ? *norm : NormWeights{}, .weights = std::move(weights),
                         .biases = std::move(biases), .outs = {}, .gate = gate, .act = act};
            for (int o : outs) s.outs.push_back(&p.value(o));
            if (residual >= 0) s.residual = &p.value(residual);
            p.add(make_linear(std::move(s)), layer);
        }, "x"_a, "weights"_a, "outs"_a, "norm"_a.none(), "biases"_a, "gate"_a, "act"_a, "residual"_a, "layer"_a,
           nb::keep_alive<1, 3>())
        .def("add_attend", [](Plan& p, int q, int k, int v, int out, nb::ndarray<nb::ndim<5>, nb::c_contig> keys,
                              nb::ndarray<nb::ndim<5>, nb::c_contig> values, int group, int kv_layer_index, int heads,
                              int kv_heads, int head_dim, std::optional<int> window, float scale, int layer) {
            AttendSpec s{&p.value(q), &p.value(k), &p.value(v), &p.value(out),
                         kv_layer(keys, values, kv_layer_index, kv_heads, head_dim), group, heads, scale,
                         window.value_or(EVERYTHING)};
            if (group < 0 || size_t(group) >= p.groups().size()) throw nb::value_error("no such state group");
            if (s.window < 1 || s.window > p.groups()[size_t(group)].window)
                throw nb::value_error("a window must lie within what its state group keeps");
            p.add(make_attend(s), layer);
        }, "q"_a, "k"_a, "v"_a, "out"_a, "keys"_a, "values"_a, "group"_a, "kv_layer"_a, "heads"_a, "kv_heads"_a,
           "head_dim"_a, "window"_a.none(), "scale"_a, "layer"_a)
        .def("add_route", [](Plan& p, int logits, int chosen, int shares, std::vector<float> bias, bool softmax, int groups,
                             int kept_groups, int group_best, bool renormalise, float scale, int layer) {
            const auto width = [&](int v) { return int(p.value(v).rows.stride); };
            const RouteSpec rule{width(logits), width(chosen), softmax, nullptr, groups, kept_groups, group_best,
                                 renormalise, scale};
            p.add(make_route({&p.value(logits), &p.value(chosen), &p.value(shares), rule, std::move(bias)}), layer);
        }, "logits"_a, "chosen"_a, "shares"_a, "bias"_a, "softmax"_a, "groups"_a, "kept_groups"_a, "group_best"_a,
           "renormalise"_a, "scale"_a, "layer"_a)
        .def("add_experts", [](Plan& p, const Matrix& gate, const Matrix& up, const Matrix& down, int experts, int x,
                               int chosen, int shares, int out, const NormWeights* norm, int residual, Act act, int layer) {
            Value* added = residual >= 0 ? &p.value(residual) : nullptr;
            p.add(make_experts({&p.value(x), &p.value(chosen), &p.value(shares), &p.value(out), norm ? *norm : NormWeights{},
                                &gate, &up, &down, experts, added, act}), layer);
        }, "gate"_a, "up"_a, "down"_a, "experts"_a, "x"_a, "chosen"_a, "shares"_a, "out"_a, "norm"_a.none(),
           "residual"_a, "act"_a, "layer"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def("add_latent", [](Plan& p, int q, int c, int out, nb::ndarray<nb::ndim<4>, nb::c_contig> rows, int group,
                              int latent_layer_index, std::vector<const Matrix*> k_b, std::vector<const Matrix*> v_b,
                              const NormWeights& norm, std::vector<double> frequencies, double magnitude, bool halves,
                              float scale, int layer) {
            if (group < 0 || size_t(group) >= p.groups().size()) throw nb::value_error("no such state group");
            const int rank = int(norm.weight.size()), width = int(p.value(c).rows.stride), heads = int(k_b.size());
            const int turned = 2 * int(frequencies.size());
            const size_t angles_at = turned ? p.add_rotation(std::move(frequencies), magnitude) : 0;
            p.add(make_latent({&p.value(q), &p.value(c), &p.value(out), latent_layer(rows, latent_layer_index, rank, width),
                               group, heads, norm, std::move(k_b), std::move(v_b), turned, halves, angles_at, scale}), layer);
        }, "q"_a, "c"_a, "out"_a, "rows"_a, "group"_a, "latent_layer"_a, "k_b"_a, "v_b"_a, "norm"_a, "frequencies"_a,
           "magnitude"_a, "halves"_a, "scale"_a, "layer"_a, nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>())
        .def("add_delta", [](Plan& p, int q, int k, int v, int decay, int beta, int gate, int out, Memory<5> state,
                             Memory<4> window, int group, int delta_layer_index, View<const float, 4> taps,
                             std::vector<float> rate, std::vector<float> shift, std::optional<float> lowest,
                             float unit_eps, const NormWeights& norm, int layer) {
            const int heads = int(p.value(beta).rows.stride), width = int(p.value(q).rows.stride);
            if (group < 0 || size_t(group) >= p.groups().size() || !p.groups()[size_t(group)].recurrent)
                throw nb::value_error("no such group of recurrent state");
            const int dim = width / heads, reach = int(taps.shape(2));
            if (taps.shape(0) != size_t(heads) || taps.shape(1) != 3 || reach < 1 || reach > MAX_TAPS ||
                taps.shape(3) != size_t(dim) || rate.size() != size_t(heads) || shift.size() != size_t(width) ||
                norm.weight.size() != size_t(dim) || heads * dim != width)
                throw nb::value_error("the weights do not have the shapes that the kernels want");
            p.add(make_delta({&p.value(q), &p.value(k), &p.value(v), &p.value(decay), &p.value(beta), &p.value(gate),
                              &p.value(out), delta_layer(state, window, delta_layer_index, heads, dim, reach),
                              group, {taps.data(), taps.data() + taps.size()}, std::move(rate), std::move(shift),
                              lowest.has_value(), lowest.value_or(0), unit_eps, norm}), layer);
        }, "q"_a, "k"_a, "v"_a, "decay"_a, "beta"_a, "gate"_a, "out"_a, "state"_a, "window"_a, "group"_a, "delta_layer"_a,
           "taps"_a, "rate"_a, "shift"_a, "lowest"_a.none(), "unit_eps"_a, "norm"_a, "layer"_a)
        .def("seal", &Plan::seal)
        .def("begin", &begin, "tokens"_a, "segments"_a, "wanted"_a, "pages"_a, "logits"_a, "vocab"_a)
        .def("run", &run, "first"_a, "last"_a, "by_row"_a = false, "experts_by_row"_a = false, "seconds"_a = nb::none())
        .def("expert_reads", [](const Plan& p, int op) {
            const ExpertReads* r = p.op(op).expert_reads();
            if (!r) throw nb::value_error("this operation has no experts");
            return nb::make_tuple(r->distinct, r->reads);
        }, "op"_a, "Of the last step: different experts touched, and how often one's weights were read.");

    bind_ceilings(m);
    bind_events(m);
    bind_json(m);
    bind_sample(m);
}
