# What CTest runs beside the unit tests (declared layer by layer): scenarios, seeded defects, and the tests of scripts and
# reports. Included by CMakeLists.txt once the target `lockstep` exists.

find_program(LOCKSTEP_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(NOT LOCKSTEP_PYTHON)
  find_program(LOCKSTEP_PYTHON NAMES python3 REQUIRED)
endif()

# lockstep_run_test(NAME SECONDS arguments of lockstep...)
# Serial: cases start up to eight ranks, and their deadlines should not meet another test's load.
function(lockstep_run_test name seconds)
  add_test(NAME ${name} COMMAND lockstep ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} RUN_SERIAL TRUE LABELS scenarios
                                          ENVIRONMENT "OPENBLAS_NUM_THREADS=1" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# What a run leaves beside its exit code, under test-results/NAME.
function(lockstep_scenarios_test name seconds)
  set(folder ${CMAKE_BINARY_DIR}/test-results/${name})
  file(MAKE_DIRECTORY ${folder})
  lockstep_run_test(scenarios/${name} ${seconds} run ${ARGN} --results ${folder}/results.jsonl --junit ${folder}/junit.xml)
endfunction()

if(LOCKSTEP_BACKEND_TESTS)
  # A build against another Kokkos: its kernels, with two threads each, and ranks as processes.
  lockstep_scenarios_test(backend 600 golden/single_group_replicate_w2 models/transformer --launch process)
  set_property(TEST unit/kernels scenarios/backend APPEND PROPERTY ENVIRONMENT
    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive OMP_PROC_BIND=false)
  set_property(TEST unit/kernels scenarios/backend APPEND PROPERTY LABELS backend)
  return()
endif()

if(LOCKSTEP_SANITIZE)
  # Ranks as threads, where the sanitizers see both sides of a race.
  lockstep_scenarios_test(thread 10800 --launch thread --timeout 600)
  set_property(TEST scenarios/thread APPEND PROPERTY ENVIRONMENT
    "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1" "UBSAN_OPTIONS=print_stacktrace=1" "TSAN_OPTIONS=second_deadlock_stack=1")
  return()
endif()

lockstep_scenarios_test(cpu 1800 --device cpu)
lockstep_scenarios_test(sim 2400 --device sim)
# Cases that must fail, at the line and with the message they state: expect_failure makes them XFAIL, and the run 0.
lockstep_scenarios_test(negative 600 "negative/*")
lockstep_run_test(defects 3600 kill-matrix --results ${CMAKE_BINARY_DIR}/test-results/defects.jsonl)
lockstep_run_test(doctor 120 doctor)

# lockstep_python_test(NAME SECONDS folder or file)
function(lockstep_python_test name seconds)
  add_test(NAME ${name} COMMAND ${LOCKSTEP_PYTHON} -m pytest -q -p no:cacheprovider ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} LABELS python WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                                          ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;MPLBACKEND=Agg;LOCKSTEP_PROGRAM=$<TARGET_FILE:lockstep>;OPENBLAS_NUM_THREADS=1")
endfunction()

lockstep_python_test(reports 600 reports/tests)
lockstep_python_test(checks 120 ci/test_checks.py)
lockstep_python_test(command_line 300 ci/test_command_line.py)
set_tests_properties(command_line PROPERTIES RUN_SERIAL TRUE)

add_test(NAME check COMMAND ${PROJECT_SOURCE_DIR}/ci/check.sh)
set_tests_properties(check PROPERTIES TIMEOUT 600 LABELS python)
