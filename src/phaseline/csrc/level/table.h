// What the files of one level offer each other; table.cpp gathers it for the rest of the program.
#pragma once
#include "kernels.h"

namespace PHASELINE_LEVEL {

// A kernel's instances for tiles of 1 .. TILE_ROWS rows, as the elements of an array.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 8;  // thirty-two registers
#define EACH_COUNT(F, T) F<T, 1>, F<T, 2>, F<T, 3>, F<T, 4>, F<T, 5>, F<T, 6>, F<T, 7>, F<T, 8>
#else
constexpr int TILE_ROWS = 4;
#define EACH_COUNT(F, T) F<T, 1>, F<T, 2>, F<T, 3>, F<T, 4>
#endif

void prepare(phaseline::RowsIn x, int row, int count, int cols, phaseline::Norm norm, phaseline::Prepared into,
             float* scratch);
void product(const phaseline::Product& p, int row, int count, int p0, int p1);
void normalise(const float* x, const float* residual, float* out, int groups, int width, phaseline::Norm norm);
void residual_mix(const phaseline::RowMix& m, float* out);
void rope(const float* x, float* out, const float* angles, int heads, int head_dim, int dims, bool halves);
void store_kv(const phaseline::KvLayer& kv, const float* k, const float* v, int page, int offset);
void attend(const phaseline::KvLayer& kv, const phaseline::QueryTile& t, int split, phaseline::Partial& into,
            float* scratch);
void store_latent(const phaseline::LatentLayer& kv, const float* x, int page, int offset);
void attend_latent(const phaseline::LatentLayer& kv, const phaseline::QueryTile& t, int split, phaseline::Partial& into,
                   float* scratch);
void merge(phaseline::Partial& a, const phaseline::Partial& b, int count, int padded_dim);
void delta_prepare(const phaseline::DeltaHead& h, const phaseline::DeltaInput& in, phaseline::DeltaRow out);
void delta(const phaseline::DeltaTile& t);
void gate(const float* g, float* x, int n);
void route(const phaseline::RouteSpec& s, const float* logits, float* chosen, float* shares, float* scratch);
void combine(const phaseline::Combination& c, float* out);
void finish(const phaseline::QueryTile& t, const phaseline::Partial& a, int dim, int padded_dim);
double burn_float(long n);
double burn_quant(long n);
double read(const uint8_t* data, size_t bytes);

}  // namespace PHASELINE_LEVEL
