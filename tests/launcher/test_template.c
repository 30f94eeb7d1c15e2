#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/tools/script/template.h"

#include <stdlib.h>
#include <string.h>

static const char *find(const char *name, void *arg, struct ddp_err *err)
{
    if (strcmp(name, "loop") == 0)
        return "{{> loop}}\n";
    return strcmp(name, "tail") == 0  ? "tail of {{a}}\n{{> end}}\n"
           : strcmp(name, "end") == 0 ? "end\n"
                                      : NULL;
}

static const struct {
    const char *text, *result, *error;
} fills[] = {
    {"", "", NULL},
    {"plain\n\n", "plain\n\n", NULL},
    {"no newline", "no newline\n", NULL},
    {"x={{a}} y={{ a }}\n", "x=A y=A\n", NULL},
    {"x={{none}}\nkept\n", "kept\n", NULL}, /* no value: no line */
    {"{{a}} {{none}}\n", "", NULL},
    {"- {{three}} {{a}}\n", "- 1 A\n- 2 A\n- 3 A\n", NULL}, /* a line for each */
    {"{{#a}}\nyes {{a}}\n{{/a}}\n{{^a}}\nno\n{{/a}}\n", "yes A\n", NULL},
    {"{{#none}}\nyes\n{{/none}}\n{{^none}}\nno\n{{/none}}\n", "no\n", NULL},
    {"{{#a}}\n{{^a}}\nx\n{{/a}}\ny\n{{/a}}\n", "y\n", NULL},
    {"{{#none}}\n{{#a}}\nx\n{{/a}}\n{{/none}}\n", "", NULL},
    {"{{! a remark }}\nx\n", "x\n", NULL},
    {"{{> tail}}\n", "tail of A\nend\n", NULL},
    {"{{tricky}}\n", "{{a}} $x\n", NULL}, /* a value is not expanded again */
    {"a } b { c\n", "a } b { c\n", NULL},
    {"x\n  {{nodse}}\n", NULL, "t:2:3: unknown name 'nodse'"},
    {"{{#none}}\n{{wrong}}\n{{/none}}\n", NULL, "t:2:1: unknown name 'wrong'"},
    {"{{#wrong}}\n", NULL, "t:1:1: unknown name 'wrong'"},
    {"x {{a\n", NULL, "t:1:3: '{{' without '}}'"},
    {"{{#a}}\nx\n", NULL, "t:1:1: nothing closes 'a'"},
    {"x\n{{/a}}\n", NULL, "t:2:1: nothing open is called 'a'"},
    {"{{#a}}\n{{/b}}\n", NULL, "t:2:1: nothing open is called 'b'"},
    {"{{three}}{{three}}\n", NULL, "t:1:10: a second value of several lines 'three'"},
    {"{{> loop}}\n", NULL, "loop:1:1: templates within templates, at 'loop'"},
};

LOOP_TEST(templates_are_filled_strictly, ARRAY_LEN(fills))
{
    struct strv v = {0};
    strv_env_set(&v, "a", "A");
    strv_env_set(&v, "none", "");
    strv_env_set(&v, "three", "1\n2\n3");
    strv_env_set(&v, "tricky", "{{a}} $x");
    struct ddp_err err = {""};
    char *got = template_fill("t", fills[_i].text, &v, find, NULL, &err);
    if (fills[_i].result)
        ck_assert_msg(got && strcmp(got, fills[_i].result) == 0, "%s -> '%s' (%s)",
                      fills[_i].text, got ? got : "", err.text);
    else
        ck_assert_msg(!got && strstr(err.text, fills[_i].error), "%s -> %s",
                      fills[_i].text, err.text);
    free(got);
    strv_finish(&v);
}
