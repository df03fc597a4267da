# Every command a person needs. `make demo` and `make test` set the machine up, build and run.
#
#   make deps     install what is missing (Debian, Ubuntu)      make lint    format, clang-tidy, cppcheck
#   make build    build/statelab                                make clean   remove build/
#   make demo     experiments/quickstart.yaml, CSV and a plot   make test    all tests; SANITIZE=1 for ASan and UBSan
#   make bundle   bundle/: runs without installing anything     make test-cuda   tests that need a GPU, and
#                                                               make test-emulated  the same on an emulation of one
#   make torture  a sweep killed 50 times                       make test-slurm  sweeps on a real Slurm, set up for it
#
# Variables: BUILD=build (output folder), SANITIZE=1, MARCH=x86-64-v3 (native, x86-64, ... for the CPU code), CC,
# CUDA=0 (leave the GPU out; it is built where nvcc is found) or CUDA=emulated (on the CPU, for tests), CUDA_ARCH="80 90",
# NVCC. Code for 8.0 runs on 8.6 and 8.9 too; with that of the last one goes PTX for later cards.

ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS := $(MAKEFLAGS) -j$(shell nproc)
endif

# A comma, for use inside a function call.
, := ,

BUILD ?= build$(if $(SANITIZE),/sanitize)
LIBRARIES := openblas gsl yaml-0.1 jansson

CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
MARCH ?= $(if $(filter x86_64,$(shell uname -m)),x86-64-v3,native)
WARNINGS := -Wall -Wextra -Wno-missing-field-initializers -Wconversion -Wno-sign-conversion -Wshadow -Wstrict-prototypes -Werror
OPTIMISE := $(if $(SANITIZE),-O1 -fno-omit-frame-pointer -fsanitize=address$(,)undefined -fno-sanitize-recover=all,-O3)
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

CPPFLAGS += -I. -D_GNU_SOURCE
CFLAGS += -std=c17 -g $(OPTIMISE) -march=$(MARCH) -fno-math-errno -fno-trapping-math -ffp-contract=fast -fopenmp -fPIC $(WARNINGS)
PKG_CFLAGS := $(shell pkg-config --cflags $(LIBRARIES) 2>/dev/null)
LDLIBS := $(shell pkg-config --libs $(LIBRARIES) 2>/dev/null) -lm

SOURCES := $(sort $(wildcard kernels/*.c kernels/cpu/*.c tasks/*.c attention/*.c harness/*.c))
LIBRARY_SOURCES := $(filter-out harness/main.c,$(SOURCES))
CUDA_TESTS := $(sort $(wildcard tests/test_cuda*.c tests/time_cuda*.c))
TESTS := $(filter-out $(CUDA_TESTS),$(sort $(wildcard tests/test_*.c)))
TEST_SUPPORT := $(filter-out $(TESTS) $(CUDA_TESTS),$(sort $(wildcard tests/*.c)))
# These are built a second time with real = double, where differences and oracles can be held to 1e-10.
DOUBLE_TESTS := $(filter tests/test_ops.c tests/test_attention.c tests/test_model.c,$(TESTS))

# ---- CUDA ----

NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(SANITIZE),0,$(if $(NVCC),1,0))
CUDA_ARCH ?= 80 90
ifneq ($(CUDA),0)
CUDA_OBJECTS := $(patsubst %.cu,$(BUILD)/float/%.cu.o,$(sort $(wildcard kernels/cuda/*.cu)) tasks/cuda.cu)
CUDA_DEFINE := -DSTATELAB_CUDA
endif
ifeq ($(CUDA),1)
# The toolkit's folder; nvcc itself may be a link or a script elsewhere.
CUDA_ROOT := $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^\#\$$ TOP=//p')
CUDA_LIBRARIES := -L$(CUDA_ROOT)/lib64 -lcudart_static -ldl -lrt -lpthread
# Machine code for each architecture, and PTX of the last for later cards.
NVCCFLAGS += $(if $(shell $(NVCC) --help | grep compress-mode),--compress-mode=size) -std=c++20 -O3 -I. -I$(BUILD) -Xcompiler -Wall,-Wextra,-fPIC,-fno-exceptions,-fno-threadsafe-statics \
	$(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch)$(,)code=sm_$(arch)) \
	-gencode arch=compute_$(lastword $(CUDA_ARCH))$(,)code=compute_$(lastword $(CUDA_ARCH))
compile_cuda = echo "  nvcc $<"; $(NVCC) $(NVCCFLAGS)
else ifeq ($(CUDA),emulated)
# tests/emulator has headers of the names of CUDA's own.
EMULATOR := $(patsubst %.cpp,$(BUILD)/float/%.o,$(sort $(filter-out %/cublas.cpp,$(wildcard tests/emulator/*.cpp))))
CUDA_OBJECTS += $(EMULATOR)
CUDA_LIBRARIES := -lstdc++
CXXFLAGS += -std=c++20 -g $(OPTIMISE) -march=$(MARCH) -fno-math-errno -fno-strict-aliasing -fopenmp -fPIC \
	-ftls-model=initial-exec -fno-extern-tls-init -fno-plt -fno-semantic-interposition -Itests/emulator -I. -I$(BUILD) -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-variable -Werror
CUBLAS := $(BUILD)/lib/libcublas.so.13
compile_cuda = echo "  c++ $<"; $(CXX) $(CXXFLAGS) $(if $(filter %.cu,$<),-include cuda_runtime.h) -x c++
endif
# Found beside a bundle's programs; --disable-new-dtags lets the libraries' own libraries be found there too.
LDFLAGS += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'

objects = $(patsubst %.c,$(BUILD)/$(1)/%.o,$(2))
TEST_PROGRAMS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TESTS)) \
	$(patsubst tests/%.c,$(BUILD)/tests/%_double,$(DOUBLE_TESTS))

.PHONY: all build deps deps-test deps-lint demo test test-cuda test-emulated test-slurm torture bundle lint format clean
all: build
build: deps
	@$(MAKE) --no-print-directory $(BUILD)/statelab

# ---- dependencies ----

# $(call require,pkg-config modules,programs,packages): installs the packages unless everything is there.
define require
	@missing=; \
	command -v pkg-config >/dev/null || missing=pkg-config; \
	for module in $(1); do pkg-config --exists $$module 2>/dev/null || missing="$$missing $$module"; done; \
	for program in $(2); do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	if [ -n "$$missing" ]; then sh tests/install.sh "$$missing" $(3); fi
endef

deps:
	$(call require,$(LIBRARIES),$(CC) gnuplot,pkg-config:pkg-config openblas:libopenblas-dev gsl:libgsl-dev yaml-0.1:libyaml-dev jansson:libjansson-dev $(CC):gcc gnuplot:gnuplot-nox)
deps-test: deps
	$(call require,cmocka,valgrind g++,pkg-config:pkg-config cmocka:libcmocka-dev valgrind:valgrind g++:g++)
deps-lint: deps-test
	$(call require,,clang-format clang-tidy cppcheck,clang-format:clang-format clang-tidy:clang-tidy cppcheck:cppcheck)

# ---- build ----

$(BUILD)/statelab: $(BUILD)/float/harness/main.o $(BUILD)/libstatelab.a
	@echo "  ld $@"; $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUDA_LIBRARIES)
ifeq ($(CUDA),0)
	@echo "  CUDA skipped: $(if $(NVCC),CUDA=0 or SANITIZE=1 was given,no nvcc found); the program runs on the CPU"
endif
$(BUILD)/libstatelab.a: $(call objects,float,$(LIBRARY_SOURCES)) $(CUDA_OBJECTS)
# All of it once, for the programs of a bundle.
$(BUILD)/lib/libstatelab.so: $(call objects,float,$(LIBRARY_SOURCES)) $(CUDA_OBJECTS)
	@mkdir -p $(@D); echo "  ld $@"; $(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libstatelab.so -o $@ $^ $(LDLIBS) $(CUDA_LIBRARIES)
$(BUILD)/libstatelab_double.a: $(call objects,double,$(LIBRARY_SOURCES))
# Two makes may be at it at once.
$(BUILD)/%.a:
	@rm -f $@.$$$$; ar rcs $@.$$$$ $^ && mv -f $@.$$$$ $@

compile = @mkdir -p $(@D); echo "  cc $<"; $(CC) $(CPPFLAGS) $(PKG_CFLAGS) $(CFLAGS) $(1) -MMD -MP -c -o $@ $<
$(BUILD)/float/%.o: %.c Makefile
	$(call compile,)
$(BUILD)/double/%.o: %.c Makefile
	$(call compile,-DSTATELAB_DOUBLE)

# Only these files see whether there is CUDA, so that a change rebuilds two objects.
$(BUILD)/float/kernels/cuda_absent.o $(BUILD)/float/tasks/cuda_absent.o: CPPFLAGS += $(CUDA_DEFINE)
$(BUILD)/float/kernels/cuda_absent.o $(BUILD)/float/tasks/cuda_absent.o: $(BUILD)/cuda_setting
$(CUDA_OBJECTS): $(BUILD)/cuda_setting
$(BUILD)/cuda_setting: force
	@mkdir -p $(@D); echo '$(CUDA) $(CUDA_ARCH)' | cmp -s - $@ || echo '$(CUDA) $(CUDA_ARCH)' > $@

$(BUILD)/float/%.cu.o: %.cu Makefile
	@mkdir -p $(@D); $(compile_cuda) -MMD -MP -c -o $@ $<
$(BUILD)/float/%.o: %.cpp Makefile
	@mkdir -p $(@D); $(compile_cuda) -MMD -MP -c -o $@ $<
# Opened at run time, as CUDA's own is.
$(BUILD)/lib/libcublas.so.13: $(BUILD)/float/tests/emulator/cublas.o
	@mkdir -p $(@D); echo "  ld $@"; $(CXX) $(CXXFLAGS) -shared -o $@ $^ $(shell pkg-config --libs openblas 2>/dev/null)
# The tasks' own files, for tasks/cuda.cu: each in a namespace, then a list of their names.
TASK_NAMES = $(shell sed -n 's/^const struct task \([a-z0-9_]*\) = {$$/\1/p' tasks/*.c)
$(BUILD)/float/tasks/cuda.cu.o: $(BUILD)/cuda_tasks.inc
$(BUILD)/cuda_tasks.inc: $(wildcard tasks/*.c) Makefile
	@mkdir -p $(@D)
	@for task in $(TASK_NAMES); do printf 'namespace %s_source {\n#include "tasks/%s.c"\n}\n' $$task $$task; done > $@
	@{ printf '#define TASKS(task)'; printf ' task(%s)' $(TASK_NAMES); echo; } >> $@

# Only this file sees the version, so that a commit rebuilds one object.
$(BUILD)/float/harness/version.o $(BUILD)/double/harness/version.o: CPPFLAGS += -DSTATELAB_VERSION=$(VERSION)
$(BUILD)/float/harness/version.o $(BUILD)/double/harness/version.o: $(BUILD)/version
$(BUILD)/version: force
	@mkdir -p $(@D); echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' > $@
.PHONY: force

# ---- test ----

link_shared = @mkdir -p $(@D); echo "  ld $@"; $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
$(BUILD)/cuda/statelab: $(BUILD)/float/harness/main.o $(BUILD)/lib/libstatelab.so | $(CUBLAS)
	$(link_shared)
$(BUILD)/cuda/%: $(BUILD)/float/tests/%.o $(call objects,float,$(TEST_SUPPORT)) $(BUILD)/lib/libstatelab.so | $(CUBLAS)
	$(link_shared)
$(BUILD)/tests/%_double: $(BUILD)/double/tests/%.o $(call objects,double,$(TEST_SUPPORT)) $(BUILD)/libstatelab_double.a
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
$(BUILD)/tests/%: $(BUILD)/float/tests/%.o $(call objects,float,$(TEST_SUPPORT)) $(BUILD)/libstatelab.a
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(CFLAGS) -o $@ $^ $(LDLIBS) -lcmocka $(CUDA_LIBRARIES)
.SECONDARY:

# The README's worked example is compiled and used by a test.
$(BUILD)/readme_example.h: README.md
	@mkdir -p $(@D)
	@sed -n '/^```c$$/,/^```$$/{/^```/d;p}' $< > $@
$(BUILD)/float/tests/test_readme.o: $(BUILD)/readme_example.h
$(BUILD)/float/tests/test_readme.o: CPPFLAGS += -I$(BUILD)

test: deps-test
	@$(MAKE) --no-print-directory $(BUILD)/statelab $(TEST_PROGRAMS)
	@sh tests/run.sh $(BUILD)

CUDA_PROGRAMS := $(BUILD)/cuda/statelab $(patsubst tests/%.c,$(BUILD)/cuda/%,$(CUDA_TESTS))
test-cuda: deps-test
	@$(MAKE) --no-print-directory $(CUDA_PROGRAMS)
	@sh tests/cuda.sh $(BUILD)/cuda

# On a CPU, in a build folder of its own.
test-emulated: deps-test
	@$(MAKE) --no-print-directory CUDA=emulated BUILD=$(BUILD)/emulated \
		$(patsubst tests/%.c,$(BUILD)/emulated/cuda/%,$(filter tests/test_%,$(CUDA_TESTS)))
	@sh tests/emulated.sh $(BUILD)/emulated/cuda

torture: build
	bash tests/torture.sh $(BUILD)/statelab 50
test-slurm: build
	bash tests/slurm.sh $(BUILD)/statelab

# ---- bundle ----

bundle: deps-test
	@$(MAKE) --no-print-directory $(CUDA_PROGRAMS)
	sh tests/bundle.sh bundle $(CUDA_PROGRAMS)

# ---- demo ----

demo: build
	$(BUILD)/statelab run experiments/quickstart.yaml
	$(BUILD)/statelab report runs/quickstart
	$(BUILD)/statelab plot runs/quickstart

# ---- lint ----

C_FILES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cpp' '*.cu' '*.cuh')
LINT_FLAGS = $(CPPFLAGS) -I$(BUILD) $(PKG_CFLAGS) -std=c17 -fopenmp -DSTATELAB_VERSION=1
lint: deps-lint $(BUILD)/readme_example.h
	@clang-format --dry-run --Werror $(C_FILES)
	@printf '%s\n' $(SOURCES) $(TESTS) $(TEST_SUPPORT) | \
		xargs -P $(shell nproc) -n 1 sh -c 'clang-tidy --quiet --warnings-as-errors="*" "$$@" -- $(LINT_FLAGS)' clang-tidy
	@cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingIncludeSystem -I. $(SOURCES) $(TEST_SUPPORT)
	@echo "lint: clean"
format:
	clang-format -i $(C_FILES)

clean:
	rm -rf build

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
