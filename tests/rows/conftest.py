from tests.executors import spark as spark
