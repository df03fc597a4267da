/* Option tables read, printed and explained: see options.h. */
#include "harness/options.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUMBER_SIZE = 48, /* holds any number that number_format writes */
    SHOWN_SIZE = 72,  /* of a user's text, in a message */
    RANGE_SIZE = 512,
    NAME_LIMIT = 64 /* longer names are near to nothing */
};

static void *field_of(const struct option *option, void *fields)
{
    return (char *)fields + option->offset;
}

const struct option *option_find(const struct option *table, const char *name)
{
    for (const struct option *option = table; option->name; option++)
        if (strcmp(option->name, name) == 0)
            return option;
    return NULL;
}

void option_defaults(const struct option *table, void *fields)
{
    struct error error;
    for (const struct option *option = table; option->name; option++)
        if (option_parse(option, option->fallback, fields, &error) != 0) {
            /* A descriptor that refuses its own default is our mistake, never the user's. */
            fprintf(stderr, "option table: default of %s\n", error.message);
            abort();
        }
}

/* ---- parsing ---- */

/* A copy fit for a one-line message: cut when long, without control characters. */
static void show(const char *text, char shown[SHOWN_SIZE])
{
    size_t length = strlen(text), kept = length < SHOWN_SIZE ? length : SHOWN_SIZE - 4;
    for (size_t i = 0; i < kept; i++)
        shown[i] = (char)(iscntrl((unsigned char)text[i]) ? '?' : text[i]);
    snprintf(shown + kept, SHOWN_SIZE - kept, "%s", kept < length ? "..." : "");
}

static int refuse(const struct option *option, const char *text, const char *what, struct error *error)
{
    char shown[SHOWN_SIZE], range[RANGE_SIZE];
    show(text, shown);
    option_range(option, range, sizeof range);
    return error_set(error, "%s: '%s' %s; allowed: %s", option->name, shown, what, range);
}

/* The end of the decimal number that `text` begins with (sign, digits, point, exponent), or NULL. */
static const char *scan_decimal(const char *text)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t whole = strspn(at, "0123456789"), fraction = 0;
    at += whole;
    if (*at == '.') {
        fraction = strspn(at + 1, "0123456789");
        at += 1 + fraction;
    }
    if (whole + fraction == 0)
        return NULL;
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
        size_t digits = strspn(exponent, "0123456789");
        if (digits == 0)
            return NULL;
        at = exponent + digits;
    }
    return at;
}

static int parse_int(const struct option *option, const char *text, int *field, struct error *error)
{
    const char *digits = text + (*text == '-' || *text == '+');
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || digits[count] != '\0') {
        const char *end = scan_decimal(text);
        double value = end && *end == '\0' ? strtod(text, NULL) : NAN;
        if (isfinite(value) && value == rint(value) && fabs(value) <= INT_MAX) {
            char what[64];
            snprintf(what, sizeof what, "must be written as a whole number, %.0f", value);
            return refuse(option, text, what, error);
        }
        return refuse(option, text, "is not a whole number", error);
    }
    errno = 0;
    long value = strtol(text, NULL, 10);
    if (errno == ERANGE || value < INT_MIN || value > INT_MAX)
        return refuse(option, text, option->max < INT_MAX ? "is out of range" : "is beyond what 32 bits hold", error);
    if ((double)value < option->min || (double)value > option->max)
        return refuse(option, text, "is out of range", error);
    *field = (int)value;
    return 0;
}

/* A number followed by nothing, or, for durations, by a unit. */
static int parse_real(const struct option *option, const char *text, double *field, struct error *error)
{
    bool duration = option->type == OPTION_DURATION;
    const char *what = duration ? "is not a duration (90, 90s, 5m, 1h)" : "is not a number";
    const char *end = scan_decimal(text);
    double unit = 1;
    if (end && duration && *end && end[1] == '\0') {
        unit = *end == 's' ? 1 : *end == 'm' ? 60 : *end == 'h' ? 3600 : 0;
        end++;
    }
    if (!end || *end != '\0' || unit == 0)
        return refuse(option, text, what, error);
    errno = 0;
    double value = strtod(text, NULL);
    if (errno == ERANGE && (value == 0 || isinf(value))) /* subnormal numbers set ERANGE too, and are welcome */
        return refuse(option, text, "is beyond what a double holds", error);
    value *= unit;
    if (!isfinite(value) || !(value >= option->min && value <= option->max))
        return refuse(option, text, "is out of range", error);
    *field = value == 0 ? 0 : value; /* no negative zero */
    return 0;
}

static int parse_bool(const struct option *option, const char *text, bool *field, struct error *error)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return refuse(option, text, "is neither true nor false", error);
    *field = strcmp(text, "true") == 0;
    return 0;
}

static int parse_choice(const struct option *option, const char *text, int *field, struct error *error)
{
    for (int i = 0; option->choices[i]; i++)
        if (strcmp(option->choices[i], text) == 0) {
            *field = i;
            return 0;
        }
    const char *near = nearest_name(text, option->choices);
    char what[64 + NAME_LIMIT] = "is unknown";
    if (near)
        snprintf(what, sizeof what, "is unknown, did you mean '%s'?", near);
    return refuse(option, text, what, error);
}

static int parse_text(const struct option *option, const char *text, char *field, struct error *error)
{
    size_t length = strlen(text);
    if (length >= OPTION_TEXT_SIZE)
        return refuse(option, text, "is too long", error);
    for (size_t i = 0; i < length; i++)
        if (iscntrl((unsigned char)text[i]))
            return refuse(option, text, "holds a control character", error);
    memset(field, 0, OPTION_TEXT_SIZE); /* the whole field is compared and hashed */
    memcpy(field, text, length + 1);
    return 0;
}

int option_parse(const struct option *option, const char *text, void *fields, struct error *error)
{
    void *field = field_of(option, fields);
    switch (option->type) {
    case OPTION_INT:
        return parse_int(option, text, field, error);
    case OPTION_REAL:
    case OPTION_DURATION:
        return parse_real(option, text, field, error);
    case OPTION_BOOL:
        return parse_bool(option, text, field, error);
    case OPTION_CHOICE:
        return parse_choice(option, text, field, error);
    case OPTION_TEXT:
        return parse_text(option, text, field, error);
    }
    return error_set(error, "%s: the option table names no known type", option->name);
}

/* ---- printing ---- */

/* The fewest significant digits that read back as `value`; plain notation from 0.0001 to below 1e15. */
void number_format(double value, char *text, size_t size)
{
    char scientific[NUMBER_SIZE];
    int digits = 1;
    do
        snprintf(scientific, sizeof scientific, "%.*e", digits - 1, value);
    while (strtod(scientific, NULL) != value && ++digits <= 17);
    char *mark = strchr(scientific, 'e');
    if (!mark) { /* infinity, nan: only as the end of a range */
        snprintf(text, size, "%s", scientific);
        return;
    }
    int exponent = (int)strtol(mark + 1, NULL, 10);
    if (exponent >= -4 && exponent < 15)
        snprintf(text, size, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 0, value);
    else
        snprintf(text, size, "%.*se%d", (int)(mark - scientific), scientific, exponent);
}

/* In the largest unit that divides it. */
static void format_duration(double seconds, char *text, size_t size)
{
    double unit = seconds >= 3600 && fmod(seconds, 3600) == 0 ? 3600 : seconds >= 60 && fmod(seconds, 60) == 0 ? 60 : 1;
    char number[NUMBER_SIZE];
    number_format(seconds / unit, number, sizeof number);
    snprintf(text, size, "%s%s", number, unit == 3600 ? "h" : unit == 60 ? "m" : "s");
}

bool number_parse(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return *text != '\0' && *end == '\0' && text[strspn(text, "+-.0123456789eE")] == '\0';
}

bool same_value(const char *a, const char *b)
{
    double x, y;
    return number_parse(a, &x) && number_parse(b, &y) ? x == y : strcmp(a, b) == 0;
}

void option_format(const struct option *option, const void *fields, char *text, size_t size)
{
    const void *field = (const char *)fields + option->offset;
    switch (option->type) {
    case OPTION_INT:
        snprintf(text, size, "%d", *(const int *)field);
        break;
    case OPTION_REAL:
        number_format(*(const double *)field, text, size);
        break;
    case OPTION_BOOL:
        snprintf(text, size, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_CHOICE:
        snprintf(text, size, "%s", option->choices[*(const int *)field]);
        break;
    case OPTION_TEXT:
        snprintf(text, size, "%s", (const char *)field);
        break;
    case OPTION_DURATION:
        format_duration(*(const double *)field, text, size);
        break;
    }
}

static void number_range(const struct option *option, char *text, size_t size)
{
    void (*format)(double, char *, size_t) = option->type == OPTION_DURATION ? format_duration : number_format;
    char low[NUMBER_SIZE], high[NUMBER_SIZE];
    format(option->min, low, sizeof low);
    format(option->max, high, sizeof high);
    double largest = option->type == OPTION_INT ? INT_MAX : HUGE_VAL;
    bool open_below = option->type == OPTION_INT ? option->min <= INT_MIN : isinf(option->min);
    bool open_above = option->max >= largest;
    if (open_below && open_above)
        snprintf(text, size, "any %s", option->type == OPTION_INT ? "whole number" : "finite number");
    else if (open_above)
        snprintf(text, size, "at least %s", low);
    else if (open_below)
        snprintf(text, size, "at most %s", high);
    else
        snprintf(text, size, "%s to %s", low, high);
}

void option_range(const struct option *option, char *text, size_t size)
{
    switch (option->type) {
    case OPTION_INT:
    case OPTION_REAL:
    case OPTION_DURATION:
        number_range(option, text, size);
        break;
    case OPTION_BOOL:
        snprintf(text, size, "true | false");
        break;
    case OPTION_CHOICE: {
        size_t used = 0;
        for (int i = 0; option->choices[i] && used < size; i++)
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " | " : "", option->choices[i]);
        break;
    }
    case OPTION_TEXT:
        snprintf(text, size, "at most %d bytes", OPTION_TEXT_SIZE - 1);
        break;
    }
}

static const char *type_name(enum option_type type)
{
    static const char *const names[] = { "int", "real", "bool", "choice", "text", "duration" };
    return names[type];
}

void option_help(const struct option *table, FILE *out)
{
    const char *const titles[] = { "name", "type", "default", "range" };
    size_t widths[4];
    char range[RANGE_SIZE];
    for (int column = 0; column < 4; column++)
        widths[column] = strlen(titles[column]);
    for (const struct option *option = table; option->name; option++) {
        option_range(option, range, sizeof range);
        const char *cells[] = { option->name, type_name(option->type), option->fallback, range };
        for (int column = 0; column < 4; column++)
            if (strlen(cells[column]) > widths[column])
                widths[column] = strlen(cells[column]);
    }
    fprintf(out, "%-*s  %-*s  %-*s  %-*s  %s\n", (int)widths[0], titles[0], (int)widths[1], titles[1], (int)widths[2],
            titles[2], (int)widths[3], titles[3], "meaning");
    for (const struct option *option = table; option->name; option++) {
        option_range(option, range, sizeof range);
        fprintf(out, "%-*s  %-*s  %-*s  %-*s  %s%s\n", (int)widths[0], option->name, (int)widths[1],
                type_name(option->type), (int)widths[2], option->fallback, (int)widths[3], range, option->meaning,
                option->training_only ? " (training only)" : "");
    }
}

/* ---- did you mean ---- */

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static bool same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b, whatever the case. */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][NAME_LIMIT + 1]; /* this row of the table and the two above it, by turns */
    int length_a = (int)strlen(a), length_b = (int)strlen(b);
    for (int j = 0; j <= length_b; j++)
        rows[0][j] = j;
    for (int i = 1; i <= length_a; i++) {
        int *row = rows[i % 3], *above = rows[(i - 1) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            row[j] = smaller(smaller(above[j], row[j - 1]) + 1, above[j - 1] + !same_letter(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
                row[j] = smaller(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[length_a % 3][length_b];
}

const char *nearest_name(const char *name, const char *const *names)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_LIMIT)
        return NULL;
    const char *nearest = NULL;
    int best = (int)(length + 2) / 3 + 1; /* a third of the letters may be wrong */
    for (; *names; names++) {
        if (strlen(*names) > NAME_LIMIT)
            continue;
        int distance = edit_distance(name, *names);
        if (distance < best && distance < (int)strlen(*names)) {
            best = distance;
            nearest = *names;
        }
    }
    return nearest;
}
