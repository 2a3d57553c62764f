/* Robust logistic regression by SAGDA, Option I, in C: as fast as plain loops go.

   Shapes are constants of the compilation, from shape.h: CLIENTS, ROWS, FEATURES,
   CHECKS (check rounds), STEPS (K), BATCH (rows of a batch). The first argument is a
   file of float32 and int32: the start x and y, the features, the labels, and the
   positions [CHECKS, CLIENTS, STEPS + 1, BATCH]; the second is 1 for whole batches.
   A line of output gives z after the check rounds; then each line of input is a number
   of rounds, each line of output the seconds one of them took. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shape.h"

#define WIDE(n) (((n) + 15) / 16 * 16) /* rows begin at whole cache lines */
#define D WIDE(FEATURES)
#define N WIDE(ROWS)
#define P (D + N) /* z: x, then y; what fills up stays zero */
#define MOST (BATCH > ROWS ? BATCH : ROWS)
#define ALIGNED __attribute__((aligned(64)))

static const float LOCAL = 0.01f, SERVER = 2, LAMBDA_2 = 1e-3f, ALPHA = 10;

static float features[CLIENTS][ROWS][D] ALIGNED, label[CLIENTS][ROWS] ALIGNED;
static int32_t given[CHECKS][CLIENTS][STEPS + 1][BATCH];
static float z[P] ALIGNED, v[P] ALIGNED, v_of[CLIENTS][P] ALIGNED;
static float moved[P] ALIGNED, renewed[P] ALIGNED;

/* The next number of splitmix64 (Steele, Lea and Flood 2014). */
static inline uint64_t next(uint64_t *state) {
  uint64_t s = *state += 0x9e3779b97f4a7c15u;
  s = (s ^ s >> 30) * 0xbf58476d1ce4e5b9u;
  s = (s ^ s >> 27) * 0x94d049bb133111ebu;
  return s ^ s >> 31;
}

/* The gradient on n rows; y's part has its sign turned. NULL: the first n rows. */
static inline void gradient(const float *restrict z, const float (*restrict a)[D],
                            const float *restrict b, const int32_t *restrict position,
                            int n, float *restrict g) {
  const float *x = z, *y = z + D;
  float margin[MOST] ALIGNED, loss[MOST] ALIGNED, slope[MOST] ALIGNED;

  for (int r = 0; r < n; r++) {
    int p = position ? position[r] : r;
    float h = 0;
#pragma omp simd reduction(+ : h)
    for (int k = 0; k < D; k++) h += a[p][k] * x[k];
    margin[r] = b[p] * h;
    slope[r] = -b[p] * y[p] / n;
  }
#pragma omp simd
  for (int r = 0; r < n; r++) {
    float odds = expf(-fabsf(margin[r]));
    loss[r] = (log1pf(odds) - fminf(margin[r], 0)) / n;
    slope[r] *= (margin[r] > 0 ? odds : 1) / (1 + odds);
  }
#pragma omp simd
  for (int k = 0; k < D; k++) {
    float q = 1 + ALPHA * x[k] * x[k];
    g[k] = 2 * LAMBDA_2 * ALPHA * x[k] / (q * q);
  }
#pragma omp simd
  for (int j = 0; j < ROWS; j++) g[D + j] = y[j] - 1.0f / ROWS;
  for (int r = 0; r < n; r++) {
    int p = position ? position[r] : r;
#pragma omp simd
    for (int k = 0; k < D; k++) g[k] += slope[r] * a[p][k];
    g[D + p] -= loss[r];
  }
}

/* Client i's part of a round, added to its thread's sums. */
static inline void visit(int i, const int32_t (*rows)[BATCH], int n,
                         float *restrict delta, float *restrict renewal) {
  float z_i[P] ALIGNED, g[P] ALIGNED = {0}, shift[P] ALIGNED;
  const int32_t *position;
  memcpy(z_i, z, sizeof z);
  for (int j = 0; j < P; j++) shift[j] = v[j] - v_of[i][j];
  for (int k = 0; k < STEPS; k++) {
    position = rows ? rows[k] : NULL;
    gradient(z_i, features[i], label[i], position, n, g);
    for (int j = 0; j < P; j++) z_i[j] -= LOCAL * (g[j] + shift[j]);
  }
  position = rows ? rows[STEPS] : NULL;
  gradient(z, features[i], label[i], position, n, g);
  for (int j = 0; j < P; j++) {
    delta[j] += z_i[j] - z[j];
    renewal[j] += g[j] - v_of[i][j];
    v_of[i][j] = g[j];
  }
}

/* Rounds from `first` on; `check` has their rows, or NULL to draw them. */
static void run(int first, int rounds, int whole,
                const int32_t (*check)[CLIENTS][STEPS + 1][BATCH]) {
#pragma omp parallel
  for (int t = first; t < first + rounds; t++) {
    float delta[P] ALIGNED = {0}, renewal[P] ALIGNED = {0};
#pragma omp for schedule(static) nowait
    for (int i = 0; i < CLIENTS; i++) {
      if (whole) {
        visit(i, NULL, ROWS, delta, renewal);
      } else if (check) {
        visit(i, check[t - first][i], BATCH, delta, renewal);
      } else {
        int32_t rows[STEPS + 1][BATCH];
        uint64_t state = ((uint64_t)t << 32) + (uint64_t)i * 0x10001;
        next(&state);
        for (int k = 0; k <= STEPS; k++)
          for (int r = 0; r < BATCH; r++) rows[k][r] = (next(&state) >> 32) * ROWS >> 32;
        visit(i, rows, BATCH, delta, renewal);
      }
    }
#pragma omp critical
    for (int j = 0; j < P; j++) {
      moved[j] += delta[j];
      renewed[j] += renewal[j];
    }
#pragma omp barrier
#pragma omp single
    for (int j = 0; j < P; j++) {
      z[j] += SERVER / CLIENTS * moved[j];
      v[j] += renewed[j] / CLIENTS;
      moved[j] = renewed[j] = 0;
    }
  }
}

static void get(void *into, size_t size, size_t count, FILE *file) {
  if (fread(into, size, count, file) != count) {
    fprintf(stderr, "the file of the job is too short\n");
    exit(1);
  }
}

static void answer(void) {
  printf("{\"ready\": true, \"versions\": {\"gcc\": \"%s\"}, \"z\": [", __VERSION__);
  for (int k = 0; k < FEATURES; k++) printf("%.9g, ", z[k]);
  for (int j = 0; j < ROWS; j++) printf("%.9g%s", z[D + j], j < ROWS - 1 ? ", " : "]}\n");
  fflush(stdout);
}

int main(int count, char **arguments) {
  FILE *file = count == 3 ? fopen(arguments[1], "rb") : NULL;
  if (!file) {
    fprintf(stderr, "usage: dro FILE 0|1\n");
    return 1;
  }
  int whole = atoi(arguments[2]), rounds, done = CHECKS;
  get(z, sizeof(float), FEATURES, file);
  get(z + D, sizeof(float), ROWS, file);
  for (int i = 0; i < CLIENTS; i++)
    for (int j = 0; j < ROWS; j++) get(features[i][j], sizeof(float), FEATURES, file);
  get(label, sizeof(float), CLIENTS * ROWS, file);
  get(given, sizeof(int32_t), sizeof given / sizeof(int32_t), file);
  fclose(file);

  run(0, CHECKS, whole, given);
  answer();
  while (scanf("%d", &rounds) == 1) {
    double clock = omp_get_wtime();
    run(done, rounds, whole, NULL);
    printf("{\"seconds\": %.9g}\n", (omp_get_wtime() - clock) / rounds);
    fflush(stdout);
    done += rounds;
  }
}
