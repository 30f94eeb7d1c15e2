/* worker/data/tokens.c - tokens in a mapped file; see dataset.h */
#include "worker/data/dataset.h"

#include "common/err.h"
#include "common/scoped.h"
#include "worker/data/idx.h"

#include <inttypes.h>
#include <string.h>

/* llm.c's headers: 256 numbers of 32 bits; the first is one of these two, the third the
 * number of tokens. */
enum { HEADER = 1024, MAGIC_16 = 20240520, MAGIC_32 = 20240801, MOST_TESTS = 1000 };

static bool is_called(const char *name, const char *end)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, end) == 0;
}

static int find_array(struct dataset *d, const struct file_map *map, size_t *begin,
                      bool *has_sign, struct ddp_err *err)
{
    struct idx array;
    TRY(npy_parse(d->name, map->at, map->bytes, &array, err));
    if (array.ndim > 1 || array.kind == 'f' || array.width > 4)
        return err_set(err,
                       "'%s' is no array of tokens of 16 or 32 bits, in one dimension: "
                       "convert it with numpy's astype() and ravel()",
                       d->name);
    d->token_bytes = (int)array.width;
    *has_sign = array.kind == 'i';
    *begin = (size_t)(array.data - map->at);
    return 0;
}

/* The width of tokens, and the offset of the first. */
static size_t find_tokens(struct dataset *d, const struct file_map *map)
{
    uint32_t magic = 0;
    d->token_bytes = is_called(d->name, ".bin") ? 2 : 1;
    if (d->token_bytes == 1 || map->bytes < HEADER)
        return 0;
    memcpy(&magic, map->at, sizeof magic);
    d->token_bytes = magic == MAGIC_32 ? 4 : 2;
    return magic == MAGIC_16 || magic == MAGIC_32 ? HEADER : 0;
}

static uint32_t token(const struct dataset *d, const void *tokens, size_t i)
{
    switch (d->token_bytes) {
    case 1:
        return ((const uint8_t *)tokens)[i];
    case 2:
        return ((const uint16_t *)tokens)[i];
    default:
        return ((const uint32_t *)tokens)[i];
    }
}

/* A copy that broke off would be another, smaller set of data. */
static int check_whole(const char *name, const struct file_map *map, size_t begin,
                       size_t bytes, struct ddp_err *err)
{
    uint32_t said[3] = {0};
    if (begin > 0)
        memcpy(said, map->at, sizeof said);
    size_t rest = map->bytes - begin;
    if (rest / bytes < said[2])
        return err_set(err, "'%s' is cut short: %zu tokens, and its header says %u", name,
                       rest / bytes, said[2]);
    return rest % bytes == 0
               ? 0
               : err_set(err, "'%s' is cut short: it ends within a token of %zu bytes",
                         name, bytes);
}

int tokens_load(const char *name, int context, int vocabulary, struct dataset *out,
                struct ddp_err *err)
{
    *out = (struct dataset){
        .name = name, .task = TASK_TOKENS, .shape = {1, 1, context, vocabulary}};
    SCOPED(file_map_close) struct file_map map = {0};
    if (!name) {
        out->token_bytes = vocabulary > 256 ? 2 : 1;
        return 0;
    }
    TRY(file_map_open(name, &map, err));
    bool array = is_called(name, ".npy"), has_sign = false;
    size_t begin = array ? 0 : find_tokens(out, &map);
    if (array)
        TRY(find_array(out, &map, &begin, &has_sign, err));
    size_t bytes = (size_t)out->token_bytes;
    size_t n = (map.bytes - begin) / bytes,
           samples = n > 0 ? (n - 1) / (size_t)context : 0;
    const uint8_t *at = map.at + begin;
    uint32_t even = 0, odd = 0; /* the largest of the first, third...; of the others */
    if (!array)
        TRY(check_whole(name, &map, begin, bytes, err));
    for (size_t i = 0; i < n; i++) {
        uint32_t t = token(out, at, i), *most = i % 2 ? &odd : &even;
        *most = t > *most ? t : *most;
    }
    if (samples < 2 || samples > UINT32_MAX)
        return err_set(err, "'%s' has %zu tokens: of %d each, that is %s", name, n,
                       context, samples < 2 ? "not two samples" : "too many samples");
    const uint8_t *zero = bytes == 1 && !array ? memchr(at, 0, n) : NULL;
    if (zero)
        return err_set(err,
                       "'%s' is not a text: byte %td is 0 (convert UTF-16 with iconv -t "
                       "UTF-8; tokens are in files .bin and .npy)",
                       name, zero - at);
    uint32_t most = even > odd ? even : odd, upper = (uint32_t)(vocabulary - 1) >> 16;
    if (bytes == 2 && !array && begin == 0 && odd <= upper && even > upper)
        return err_set(
            err,
            "'%s' has no header and looks like tokens of 32 bits, not 16 (each "
            "second is at most %u): a .npy file says how wide they are",
            name, upper);
    if (has_sign && most >> (8 * bytes - 1))
        return err_set(err, "'%s': there is a negative token, and the first is 0", name);
    if (most >= (uint32_t)vocabulary)
        return err_set(
            err,
            "'%s': there is a token %u, and the model has a vocabulary of %d: try "
            "vocab=%" PRIu64,
            name, most, vocabulary, (uint64_t)most + 1);
    out->test.n = samples < 10 ? 1 : samples / 10;
    out->test.n = out->test.n > MOST_TESTS ? MOST_TESTS : out->test.n;
    out->train.n = samples - out->test.n;
    out->train.tokens = at;
    out->test.tokens = at + out->train.n * (size_t)context * bytes;
    out->train.map = map;
    map = (struct file_map){0};
    return 0;
}

void tokens_gather(const struct dataset *d, const struct samples *part,
                   const uint32_t *which, int n, uint32_t *out)
{
    size_t W = (size_t)d->shape.W;
    for (int s = 0; s < n; s++)
        for (size_t i = 0; i <= W; i++)
            *out++ = token(d, part->tokens, which[s] * W + i);
}
