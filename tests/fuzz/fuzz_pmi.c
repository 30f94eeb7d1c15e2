/* tests/fuzz/fuzz_pmi.c - requests of PMI-1 and PMI-2, as an agent's ranks send them
 *
 * Input: a byte that chooses the dialect, then what comes on the descriptor. Aborts when
 * the size of a request is more than what has come or than PMI_REQUEST_MAX, and when a
 * word of it lies outside its bytes.
 */
#include "launcher/plugins/mpi/pmi_wire.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_word(const char *word, const char *text, size_t size)
{
    if (word < text || word >= text + size ||
        !memchr(word, '\0', (size_t)(text + size - word)))
        abort();
}

/* In a block of its own size, so that a sanitizer sees the first byte too far. */
static void check_request(const char *data, size_t size, bool second)
{
    struct pmi_request r;
    char *text = malloc(size);
    if (!text)
        abort();
    memcpy(text, data, size);
    pmi_request_read(&r, text, size, second);
    if (r.n > PMI_WORDS)
        abort();
    for (size_t i = 0; i < r.n; i++) {
        check_word(r.words[i].name, text, size);
        check_word(r.words[i].value, text, size);
        if (!pmi_word(&r, r.words[i].name))
            abort();
    }
    if (strlen(pmi_text(&r, "cmd")) >= size)
        abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    bool second = data[0] % 2;
    const char *p = (const char *)data + 1, *end = (const char *)data + size;
    for (long n; p < end && (n = pmi_request_size(p, (size_t)(end - p), second)) > 0;
         p += n) {
        if (n > end - p || n > PMI_REQUEST_MAX + 6)
            abort();
        check_request(p, (size_t)n, second);
    }
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "0cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\n",
        "0cmd=put kvsname=k0 key=P0-businesscard value=fabric#a b c$\ncmd=barrier_in\n",
        "0cmd=get kvsname=k0 key=P1-businesscard\ncmd=abort exitcode=7\n",
        "1    46cmd=fullinit;pmirank=0;threaded=FALSE;thrid=1;",
        "1    37cmd=kvs-put;key=a;value=b;;c;thrid=7;    14cmd=kvs-fence;",
    };
    size_t len = strlen(seeds[n % 5]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 5], len);
    return len;
}
