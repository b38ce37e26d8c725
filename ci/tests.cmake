# The tests that CTest runs beside the unit tests of the layers: scenarios, seeded defects, and the tests of scripts and reports.
# CMakeLists.txt includes this file once the target `lockstep` exists.

find_program(LOCKSTEP_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(NOT LOCKSTEP_PYTHON)
  find_program(LOCKSTEP_PYTHON NAMES python3 REQUIRED)
endif()

# lockstep_run_test(NAME SECONDS arguments of lockstep...)
# Serial: cases start up to eight ranks, and the load of another test could break their deadlines.
function(lockstep_run_test name seconds)
  add_test(NAME ${name} COMMAND lockstep ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} RUN_SERIAL TRUE LABELS scenarios
                                          ENVIRONMENT "OPENBLAS_NUM_THREADS=1" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# A run that also writes its results and JUnit files to test-results/NAME.
function(lockstep_scenarios_test name seconds)
  set(folder ${CMAKE_BINARY_DIR}/test-results/${name})
  file(MAKE_DIRECTORY ${folder})
  lockstep_run_test(scenarios/${name} ${seconds} run ${ARGN} --results ${folder}/results.jsonl --junit ${folder}/junit.xml)
endfunction()

# A finding of a sanitizer ends the process, including that of a rank. The case then has a rank that did not finish.
set(LOCKSTEP_SANITIZER_OPTIONS
    "ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${PROJECT_SOURCE_DIR}/ci/tsan.supp")

if(LOCKSTEP_BACKEND_TESTS)
  # A build against another Kokkos: the kernels with two threads each, and ranks as processes. ci/test.sh compares the hashes in
  # bits/threads with those of the release build.
  lockstep_scenarios_test(backend 3600 replicate/* training/* state_dict/* --launch process
                          --trace-bits ${CMAKE_BINARY_DIR}/bits/threads)
  set_property(TEST unit/kernels scenarios/backend APPEND PROPERTY ENVIRONMENT
    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive OMP_PROC_BIND=false)
  set_property(TEST unit/kernels scenarios/backend APPEND PROPERTY LABELS backend)
  return()
endif()

if(LOCKSTEP_SANITIZE)
  # Ranks are threads, so that the sanitizers see both sides of a race and search for leaks at the end. Instrumented code is slow:
  # the deadlines are two minutes.
  # With a process per case a finding belongs to its case alone.
  set(patient --launch thread --process-per-case --deadline 120 --timeout 600)
  if(LOCKSTEP_SANITIZE MATCHES thread)
    # All folders except negative/, whose cases are wrong on purpose, some by a race.
    file(GLOB folders RELATIVE ${PROJECT_SOURCE_DIR}/scenarios CONFIGURE_DEPENDS LIST_DIRECTORIES TRUE ${PROJECT_SOURCE_DIR}/scenarios/*)
    list(FILTER folders EXCLUDE REGEX "^(negative|lib)$|[.]")
    list(TRANSFORM folders APPEND "/*" OUTPUT_VARIABLE selection)
    foreach(device IN ITEMS cpu sim)
      lockstep_scenarios_test(thread_${device} 10800 ${selection} --device ${device} ${patient})
    endforeach()
    # These two runs show that a race in a scenario is reported: one waits for no collective, the other for no gather.
    lockstep_run_test(sanitizers/missing_wait 600 run negative/missing_wait --device sim ${patient})
    lockstep_run_test(sanitizers/gather_not_waited_for 600 run beyond/overlap_by_order --case ahead=false,held_up=nothing --device sim
                      --no-order-check --defect shard_compute_ignores_gather ${patient})
    set_tests_properties(sanitizers/missing_wait sanitizers/gather_not_waited_for
                         PROPERTIES PASS_REGULAR_EXPRESSION "ThreadSanitizer: data race")
  else()
    foreach(device IN ITEMS cpu sim)
      lockstep_scenarios_test(thread_${device} 10800 --device ${device} ${patient})
    endforeach()
  endif()
  get_property(declared DIRECTORY PROPERTY TESTS)
  foreach(name IN LISTS declared)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${LOCKSTEP_SANITIZER_OPTIONS})
    get_test_property(${name} TIMEOUT seconds)
    if(seconds LESS 3600)
      set_property(TEST ${name} PROPERTY TIMEOUT 3600)
    endif()
  endforeach()
  return()
endif()

# These runs include the cases that must fail (negative/): expect_failure makes them XFAIL, and the exit code 0.
# On cpu ranks are threads, which is twice as fast, and on sim processes; those scenarios run on cpu too that have cases for processes
# alone.
lockstep_scenarios_test(cpu 1800 --device cpu --launch thread)
lockstep_scenarios_test(cpu_processes 600 negative/* collectives/killed_while_it_waits collectives/dead_rank beyond/full_ring
                        beyond/narrow_gathers beyond/sharded_mean_of_ranks beyond/replicas_and_shards_apart bits/reshard
                        checkpoints_on_disk/killed_while_saving shapes/world_sizes --device cpu --launch process)
lockstep_scenarios_test(sim 2400 --device sim)
# Under a schedule, memory that a collective writes is filled with NaN before, and a `delay` below the deadline takes no time.
lockstep_scenarios_test(schedule 600 collectives/* --schedule random:1)
# The cuda device over its stand-in on the host. In a build with CUDA the device needs a GPU.
if(NOT LOCKSTEP_CUDA)
  # It hashes values too: the hashes must order no launches.
  lockstep_scenarios_test(cuda_stand_in 900 replicate/* collectives/* state_dict/* compose/* bits/* beyond/launches_of_* flat/launches_of_*
                          --device cuda --trace-bits ${CMAKE_BINARY_DIR}/bits/cuda)
  set_property(TEST scenarios/cuda_stand_in APPEND PROPERTY ENVIRONMENT LOCKSTEP_CUDA=stand-in)
  # With a GPU per rank, over a stand-in of NCCL.
  lockstep_scenarios_test(nccl_stand_in 900 replicate/* collectives/* sum_order/* negative/beyond_another_order
                          --device cuda --deadline 60 --timeout 300)
  lockstep_run_test(mutate_on_gpus 300 mutate sum_order/* --device cuda)
  set_property(TEST scenarios/nccl_stand_in mutate_on_gpus APPEND PROPERTY ENVIRONMENT LOCKSTEP_CUDA=stand-in:8)
endif()
# The two runs above compare with PyTorch's figures for seed 42, the default, this one with those of the other stored seed.
lockstep_scenarios_test(golden_seed_1234 300 golden/* --set seed=1234 --device cpu)
# caught_defects.jsonl is the results file of such a run. Each defect meets first what caught it there.
lockstep_run_test(defects 3600 kill-matrix --earlier ${PROJECT_SOURCE_DIR}/ci/caught_defects.jsonl
                  --results ${CMAKE_BINARY_DIR}/test-results/defects.jsonl)
# Programs that a grammar makes, the same ones each time.
lockstep_run_test(fuzz 600 fuzz --seed 1 --programs 400 --output ${CMAKE_BINARY_DIR}/test-results/fuzz)
# Steps whose absence no check notices, in the folders where that takes two minutes. The stage `steps` of ci/test.sh leaves out those of
# all folders.
lockstep_run_test(mutate 1200 mutate replicate/* compose/* by_hand/* golden/* models/* plans/* bits/*)
lockstep_run_test(doctor 120 doctor)

# lockstep_python_test(NAME SECONDS folder or file)
function(lockstep_python_test name seconds)
  add_test(NAME ${name} COMMAND ${LOCKSTEP_PYTHON} -m pytest -q -p no:cacheprovider ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} LABELS python WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                                          ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;MPLBACKEND=Agg;LOCKSTEP_PROGRAM=$<TARGET_FILE:lockstep>;OPENBLAS_NUM_THREADS=1")
endfunction()

# One entry per file: drawing pages uses one core, and several may run at once.
file(GLOB report_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/reports/tests/test_*.py)
foreach(file IN LISTS report_tests)
  get_filename_component(name ${file} NAME_WE)
  string(REPLACE "test_" "reports/" name ${name})
  lockstep_python_test(${name} 600 ${file})
endforeach()
lockstep_python_test(checks 300 ci/test_checks.py)
lockstep_python_test(covering_array 60 ci/test_covering_array.py)
lockstep_python_test(mutants 300 ci/test_mutants.py)
lockstep_python_test(command_line 300 ci/test_command_line.py)
lockstep_python_test(results 120 ci/test_results.py)
lockstep_python_test(plans 60 ci/test_plans.py)
set_property(TEST plans APPEND PROPERTY ENVIRONMENT LOCKSTEP_RESULTS=${CMAKE_BINARY_DIR}/test-results/cpu/results.jsonl)
set_property(TEST scenarios/cpu PROPERTY FIXTURES_SETUP results_on_cpu)
set_property(TEST plans PROPERTY FIXTURES_REQUIRED results_on_cpu)
lockstep_python_test(refusals 300 ci/test_refusals.py)
lockstep_python_test(timeline 300 ci/test_timeline.py)
lockstep_python_test(launcher 300 ci/test_launcher.py)
lockstep_python_test(hosts 600 ci/test_hosts.py -k "not gpus")
if(NOT LOCKSTEP_CUDA)
  lockstep_python_test(hosts_with_gpus 120 ci/test_hosts.py -k gpus)
  lockstep_python_test(sum_order 120 ci/test_sum_order.py)
  lockstep_python_test(nccl_failures 120 ci/test_nccl_failures.py)
  lockstep_python_test(series 60 ci/test_series.py)
  set_tests_properties(hosts_with_gpus sum_order nccl_failures series PROPERTIES RUN_SERIAL TRUE)
endif()
lockstep_python_test(faults 60 ci/test_faults.py)
set_tests_properties(command_line results refusals timeline launcher hosts PROPERTIES RUN_SERIAL TRUE)

# A sample of the points at which a call can fail, and random damage to running programs. Both print their seeds. The tools preload a
# library into the program, which the sanitizers do not permit.
set(on_stand_in run_series)
if(LOCKSTEP_CUDA)
  set(on_stand_in)
endif()
add_test(NAME faults/points COMMAND ${PROJECT_SOURCE_DIR}/ci/faults.sh --sample 800
  list run run_failing ${on_stand_in} run_checkpoint compare report checkpoint_verify checkpoint_diff checkpoint_show checkpoint_export)
add_test(NAME faults/soak COMMAND ${PROJECT_SOURCE_DIR}/ci/soak.sh 60 --collectives 10000)
set_tests_properties(faults/points faults/soak PROPERTIES TIMEOUT 900 RUN_SERIAL TRUE LABELS faults
                     ENVIRONMENT "LOCKSTEP_PROGRAM=$<TARGET_FILE:lockstep>")

# Each wait that is left out shows as a wrong value under some schedule.
add_test(NAME schedules COMMAND ${PROJECT_SOURCE_DIR}/ci/schedules.sh --missing-waits)
set_tests_properties(schedules PROPERTIES TIMEOUT 300 LABELS device ENVIRONMENT "LOCKSTEP_PROGRAM=$<TARGET_FILE:lockstep>")

# Hosts that are network namespaces. Skipped, with the reason, where the machine does not permit them.
add_test(NAME network_hosts COMMAND ${PROJECT_SOURCE_DIR}/ci/network_hosts.sh $<TARGET_FILE:lockstep>)
set_tests_properties(network_hosts PROPERTIES TIMEOUT 900 RUN_SERIAL TRUE LABELS hosts SKIP_RETURN_CODE 77
                                              ENVIRONMENT "OPENBLAS_NUM_THREADS=1")
find_program(LOCKSTEP_MPIRUN mpirun)
if(MPI_CXX_FOUND AND LOCKSTEP_MPIRUN)
  add_test(NAME unit/comm_mpi COMMAND ${LOCKSTEP_MPIRUN} --allow-run-as-root --oversubscribe --bind-to none -n 2
                                      $<TARGET_FILE:comm_tests> "--gtest_filter=*Promises*Mpi*-*StringsArriveWhole*")
  set_tests_properties(unit/comm_mpi PROPERTIES TIMEOUT 120 LABELS hosts PASS_REGULAR_EXPRESSION "PASSED.*35 tests"
                                                FAIL_REGULAR_EXPRESSION "SKIPPED;FAILED")
endif()

# The checks that compile all headers or kernels are in stage `strict` of ci/test.sh.
add_test(NAME check COMMAND ${PROJECT_SOURCE_DIR}/ci/check.sh format layers sizes tidy)
set_tests_properties(check PROPERTIES TIMEOUT 5400 LABELS python)
