/* common/json.h - members of JSON objects (jansson), and what stands for absent ones */
#ifndef COMMON_JSON_H
#define COMMON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

static inline const char *text_or(const json_t *o, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : otherwise;
}

static inline const char *text_of(const json_t *o, const char *key) /* NULL: none */
{
    return text_or(o, key, NULL);
}

static inline bool is_text(const json_t *o, const char *key, const char *text)
{
    return strcmp(text_or(o, key, ""), text) == 0;
}

static inline json_int_t int_of(const json_t *o, const char *key) /* 0: none */
{
    return json_integer_value(json_object_get(o, key));
}

static inline double number_of(const json_t *o, const char *key) /* 0: none */
{
    return json_number_value(json_object_get(o, key));
}

/* An array of it, made if need be; borrowed. */
static inline json_t *array_in(json_t *o, const char *key)
{
    if (!json_is_array(json_object_get(o, key)))
        json_object_set_new(o, key, json_array());
    return json_object_get(o, key);
}

static inline bool is_true(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static inline bool is_false(const json_t *o, const char *key) /* it is there, and false */
{
    return json_is_false(json_object_get(o, key));
}

#endif
