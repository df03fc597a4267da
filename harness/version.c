/* The only file that is compiled again when the version changes. */
#include "harness/version.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

const char statelab_version[] = TEXT(STATELAB_VERSION);
