#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/plugins/error_file/error_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The first is as PyTorch 2.15 writes it; 1.13 does the same. */
static const struct {
    const char *json, *message;
} files[] = {
    {"{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": "
     "\"Traceback (most recent call last):\\n  File \\\"t.py\\\", line 5\\n\", "
     "\"timestamp\": \"1763710000\"}}}",
     "ValueError: boom"},
    {"{\"message\":\"SIGTERM\"}", "SIGTERM"},
    {" {\n \"message\" : {\"errorCode\": 1, \"message\" : \"x\"} }\n", "x"},
    {"{\"a\": [1, {\"message\": \"no\"}, \"]}\"], \"b\": null, \"message\": \"yes\"}",
     "yes"},
    {"{\"message\": {\"a\": -1.5e3, \"message\": \"in\"}, \"z\": 1}", "in"},
    {"{\"message\": \"first\\nsecond\"}", "first"},
    {"{\"message\": \"a\\tb\\u001b[31mc\\u0007\"}", "a b [31mc "},
    {"{\"message\": \"caf\\u00e9 \\u20ac \\ud83d\\ude00 \\\"\\\\\\/\"}",
     "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \"\\/"},
    {"{\"message\": \"half \\ud83d pair\"}", "half ? pair"},
    {"{\"message\": \"\"}", NULL},
    {"{\"message\": 3}", NULL},
    {"{\"other\": \"x\"}", NULL},
    {"{\"message\": \"\\u12g4\"}", NULL},
    {"{\"message\": {}}", NULL},
    {"[\"message\", \"x\"]", NULL},
    {"ValueError: boom", NULL},
    {"", NULL},
};

LOOP_TEST(the_message_is_found, ARRAY_LEN(files))
{
    char *text = error_file_message(files[_i].json, strlen(files[_i].json));
    ck_assert_pstr_eq(text, files[_i].message);
    free(text);
}

/* A rank that is killed while it writes. Copies, so that a sanitizer sees every step
 * beyond the end. */
LOOP_TEST(truncated_files, ARRAY_LEN(files))
{
    for (size_t n = 0; n < strlen(files[_i].json); n++) {
        char *part = malloc(n + 1);
        memcpy(part, files[_i].json, n);
        char *copy = realloc(part, n ? n : 1);
        char *text = error_file_message(copy, n);
        ck_assert_msg(!text ||
                          (files[_i].message && strcmp(text, files[_i].message) == 0),
                      "'%.*s' gives '%s'", (int)n, files[_i].json, text);
        free(text);
        free(copy);
    }
}

TEST(long_messages_are_cut_between_characters)
{
    char json[2000] = "{\"message\": \"x", *p = json + strlen(json);
    for (int i = 0; i < 500; i++)
        p = stpcpy(p, "\xc3\xa9");
    strcpy(p, "\"}");
    char *text = error_file_message(json, strlen(json));
    ck_assert_uint_eq(strlen(text) % 2, 1); /* the x, and whole characters */
    ck_assert_uint_le(strlen(text), 400);
    free(text);
}

TEST(the_file_is_written_by_its_path)
{
    char path[ERROR_FILE_PATH];
    int fd = error_file_open(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_null(error_file_read(fd));
    for (int i = 0; i < 2; i++) { /* the second time over the first */
        int w = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        ck_assert_int_ge(w, 0);
        size_t n = strlen(files[i].json);
        ck_assert_int_eq(write(w, files[i].json, n), (ssize_t)n);
        close(w);
        char *text = error_file_read(fd);
        ck_assert_pstr_eq(text, files[i].message);
        free(text);
    }
    close(fd);
    ck_assert_int_lt(open(path, O_RDONLY | O_CLOEXEC), 0); /* and no file is left */
}

/* Descriptors are kept for the ranks' pipes. */
TEST(with_few_descriptors_no_file_is_opened)
{
    struct rlimit old, few;
    char path[ERROR_FILE_PATH];
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    few = (struct rlimit){(rlim_t)next + 2, old.rlim_max};
    close(next);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_assert_int_lt(error_file_open(path), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
}
