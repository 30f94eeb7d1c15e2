#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/strv.h"

#include <stdlib.h>

TEST(push_keeps_the_terminating_null)
{
    struct strv s = {0};
    for (int i = 0; i < 100; i++)
        strv_pushf(&s, "%d", i);
    ck_assert_uint_eq(s.n, 100);
    ck_assert_str_eq(s.v[99], "99");
    ck_assert_ptr_null(s.v[100]);
    strv_finish(&s);
    ck_assert_uint_eq(s.n, 0);
}

TEST(environments_replace_and_remove)
{
    struct strv s = {0};
    strv_push(&s, "RANK=1");
    strv_push(&s, "RANKED=x");
    strv_env_set(&s, "RANK", "2");
    strv_env_set(&s, "NEW", "");
    ck_assert_str_eq(strv_env_get(&s, "RANK"), "2");
    ck_assert_str_eq(strv_env_get(&s, "RANKED"), "x");
    ck_assert_str_eq(strv_env_get(&s, "NEW"), "");
    strv_env_set(&s, "RANK", NULL);
    ck_assert_ptr_null(strv_env_get(&s, "RANK"));
    ck_assert_uint_eq(s.n, 2);
    ck_assert_ptr_null(s.v[2]);
    struct strv more = {0};
    strv_push(&more, "NEW=a=b");
    strv_push(&more, "no entry");
    strv_push(&more, "ADDED=");
    strv_env_set_all(&s, &more);
    ck_assert_str_eq(strv_env_get(&s, "NEW"), "a=b");
    ck_assert_str_eq(strv_env_get(&s, "ADDED"), "");
    ck_assert_uint_eq(s.n, 3);
    strv_finish(&more);
    strv_finish(&s);
}

static const struct {
    const char *word, *quoted;
} quotes[] = {
    {"plain", "plain"},     {"a b", "'a b'"},     {"", "''"},
    {"it's", "'it'\\''s'"}, {"$HOME", "'$HOME'"}, {"x=1,y", "x=1,y"},
};

LOOP_TEST(words_survive_a_shell, ARRAY_LEN(quotes))
{
    char *q = shell_quote(quotes[_i].word);
    ck_assert_str_eq(q, quotes[_i].quoted);
    free(q);
}

TEST(joined_words_are_one_command)
{
    char words[][8] = {"echo", "a b", "c"};
    char *v[] = {words[0], words[1], words[2], NULL};
    char *line = shell_join(v);
    ck_assert_str_eq(line, "echo 'a b' c");
    free(line);
}
